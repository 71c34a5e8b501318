"""Videos: what a file holds, what is said when nothing can be drawn, and a real one."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.report.page import build
from skewflow_lab.rl import video
from skewflow_lab.rl.video import HEIGHT, LARGEST, WIDTH, Film, encode
from skewflow_lab.runs.files import RunError
from skewflow_lab.runs.reproduce import execute

RL = EXPERIMENTS["rl"]


def film(label, length, colour):
    frames = np.full((length, HEIGHT, WIDTH, 3), colour, dtype=np.uint8)
    frames[:, :, :, 1] = 10 * np.arange(length)[:, None, None]  # no two frames are alike
    return Film(label, frames, tuple(map(float, range(length))), 0.075)


def opened(data):
    return Image.open(io.BytesIO(data))


def test_a_video_has_the_pace_of_the_simulation_and_the_size_of_its_frames():
    picture = opened(encode([film("a", 5, 100)]))
    assert picture.n_frames == 5 and picture.size == (WIDTH, HEIGHT)
    assert picture.info["duration"] == 80 and picture.info["loop"] == 0


def test_policies_stand_side_by_side_and_those_that_fell_stand_still():
    films = [film("a", 5, 0), film("b", 2, 250), film("c", 3, 100), film("d", 1, 200)]
    picture = opened(encode(films))
    assert picture.n_frames == 5 and picture.size == (3 * WIDTH, 2 * HEIGHT)
    picture.seek(4)
    pixels = np.asarray(picture.convert("RGB"), dtype=int)
    middle = HEIGHT // 2
    for n, (red, green) in enumerate([(0, 40), (250, 10), (100, 20), (200, 0)]):
        row, column = divmod(n, 3)
        found = pixels[row * HEIGHT + middle, column * WIDTH + WIDTH // 2]
        assert np.abs(found - [red, green, red]).max() < 16  # a palette of 64 colours


def test_a_film_that_would_be_too_large_is_drawn_smaller():
    noise = np.random.default_rng(0).integers(0, 256, (100, HEIGHT, WIDTH, 3), dtype=np.uint8)
    data = encode([Film("noise", noise, (0.0,) * 100, 0.08)])
    assert len(data) <= LARGEST and opened(data).width < WIDTH


@pytest.fixture
def no_renderer(monkeypatch):
    def fail(name, request):
        raise video._ChildError(f"no {name}")

    video.renderer.cache_clear()
    monkeypatch.setattr(video, "_child", fail)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    yield
    video.renderer.cache_clear()


@pytest.mark.bad_input
def test_without_a_renderer_nothing_is_started_and_the_error_says_what_to_install(
    no_renderer, monkeypatch, tmp_path
):
    with pytest.raises(RunError, match=r"egl \(no egl\), osmesa \(no osmesa\) failed. Install"):
        video.renderer()
    monkeypatch.setattr("skewflow_lab.rl.tasks.find_spec", lambda name: name)
    config = replace(RL.presets["ci"], videos=True)
    with pytest.raises(RunError, match="libosmesa6.*leave --videos out"):
        execute(RL, config, preset="ci", out=tmp_path, console=Console(quiet=True))
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("MUJOCO_GL", "glfw")  # the user's choice, and no other
    with pytest.raises(RunError, match=r"screen: glfw \(no glfw\) failed"):
        video.renderer()


@pytest.mark.skipif(RL.missing() is not None, reason="needs the extra `rl`")
def test_a_child_that_fails_says_why():
    with pytest.raises(video._ChildError, match="invalid value for environment variable MUJOCO_GL"):
        video._child("nosuch", None)


@pytest.fixture
def drawing():
    if RL.missing() is not None:
        pytest.skip("needs the extra `rl`")
    try:
        video.renderer()
    except RunError as error:
        pytest.skip(str(error))


def test_videos_of_a_finished_run_are_drawn_later_and_stand_on_the_page(drawing, tmp_path):
    small = {"hidden": (4,), "generations": 1, "num_directions": 1, "horizon": 6, "workers": 1}
    methods = ("stoch-ortRNN", "affine")
    config = replace(RL.presets["ci"], method=methods, **small)
    options = {"preset": "ci", "out": tmp_path, "console": Console(quiet=True)}
    folder = execute(RL, config, **options)
    assert not (folder / "videos").exists() and "<img" not in build(tmp_path)
    before = (folder / "summary.json").read_bytes()
    execute(RL, replace(config, videos=True), resume=True, **options)
    assert (folder / "summary.json").read_bytes() == before
    names = ["HalfCheetah-4-all", "HalfCheetah-4-stoch-ortRNN", "HalfCheetah-affine"]
    assert sorted(path.stem for path in (folder / "videos").iterdir()) == names
    picture = opened((folder / "videos" / "HalfCheetah-4-all.gif").read_bytes())
    assert picture.n_frames == 3  # 6 steps of 0.05 s, one frame in 0.1 s
    left, right = np.split(np.asarray(picture.convert("L"), dtype=int)[20:], 2, axis=1)
    assert left.std() > 10 and np.abs(left - right).mean() < 20  # a scene, the same for both
    page = build(tmp_path)
    assert page.count('<img src="data:image/gif;base64,') == 3
    assert "HalfCheetah, h = 4, stoch-ortRNN: an episode of the last policy" in page
    (folder / "kept" / "HalfCheetah,affine,seed=0.pt").unlink()
    with pytest.raises(RunError, match=r"affine,seed=0.pt must be what .* --resume then repeats"):
        execute(RL, replace(config, videos=True), resume=True, **options)
