"""Videos of policies, drawn without a screen in a separate process."""

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8

from skewflow.es import Moments

from ..runs.files import RunError
from .rollout import Rollout

if TYPE_CHECKING:
    from PIL.Image import Image

WIDTH, HEIGHT = 240, 180
SECONDS = 0.08
"""Approximate seconds between two frames: a whole number of steps of the simulation."""
FRAMES = 100
LARGEST = 2_000_000
"""Largest file in bytes; a larger one is drawn smaller."""
COLUMNS = 3
"""Number of policies side by side."""
RENDERERS = ("egl", "osmesa")

Frames = UInt8[np.ndarray, "t height width 3"]


@dataclass(frozen=True)
class Film:
    """One episode.

    Args:
        label: Written into the picture.
        frames: Pictures.
        returns: The return so far, at each of them.
        seconds: Between two frames.
    """

    label: str
    frames: Frames
    returns: tuple[float, ...]
    seconds: float


@cache
def renderer() -> str:
    """The first of MuJoCo's ways to draw without a screen that works here.

    Raises:
        RunError: If none does; it says why, and what to install.
    """
    chosen = os.environ.get("MUJOCO_GL", "disabled")
    tried = []
    for name in RENDERERS if chosen == "disabled" else (chosen,):
        try:
            if _child(name, None):
                return name
            tried.append(f"{name} (its pictures are black)")
        except _ChildError as error:
            tried.append(f"{name} ({error})")
    raise RunError(
        f"videos need a renderer of MuJoCo that works without a screen: {', '.join(tried)} "
        "failed. Install one (Debian: `apt-get install libegl1 libgl1-mesa-dri` or `libosmesa6`), "
        "choose one by the variable MUJOCO_GL, or leave --videos out; `--resume --videos` makes "
        "them later, also on another machine."
    )


def film(
    label: str, task: str, params: dict[str, Any], moments: Moments | None, seed: int, horizon: int
) -> Film:
    """An episode of a policy, or its beginning if it is long."""
    try:
        found = _child(renderer(), (task, params, moments, seed, horizon))
    except _ChildError as error:
        raise RunError(
            f"the episode of {label} on {task} could not be drawn: {error}. What was learned is "
            "stored; go on with --resume."
        ) from error
    return Film(label, *found)


def encode(films: Sequence[Film]) -> bytes:
    """A GIF of one episode, or of several side by side: those that end early stand still."""
    length = max(len(film.frames) for film in films)
    pictures = [_picture(films, t) for t in range(length)]
    while len(data := _gif(pictures, films[0].seconds)) > LARGEST:
        width, height = (int(0.8 * size) for size in pictures[0].size)
        pictures = [picture.resize((width, height)) for picture in pictures]
    return data


def _picture(films: Sequence[Film], t: int) -> "Image":
    from PIL import Image, ImageDraw

    columns = min(COLUMNS, len(films))
    rows = -(-len(films) // columns)
    whole = Image.new("RGB", (columns * WIDTH, rows * HEIGHT))
    draw = ImageDraw.Draw(whole)
    for n, film in enumerate(films):
        at = min(t, len(film.frames) - 1)
        x, y = n % columns * WIDTH, n // columns * HEIGHT
        whole.paste(Image.fromarray(film.frames[at]), (x, y))
        draw.rectangle((x, y, x + WIDTH, y + 15), fill="black")
        draw.text((x + 4, y + 2), f"{film.label}: {film.returns[at]:.0f}", fill="white")
    return whole


def _gif(pictures: Sequence["Image"], seconds: float) -> bytes:
    from PIL import Image
    from PIL.Image import Dither

    # One palette for all frames, from some of them in a column.
    sample = pictures[:: -(-len(pictures) // 5)]
    width, height = pictures[0].size
    column = Image.new("RGB", (width, height * len(sample)))
    for n, picture in enumerate(sample):
        column.paste(picture, (0, n * height))
    palette = column.quantize(64)
    # Dithering would move in every frame: the picture is worse, and the file grows threefold.
    first, *rest = (p.quantize(palette=palette, dither=Dither.NONE) for p in pictures)
    buffer = io.BytesIO()
    delay = 10 * round(100 * seconds)  # GIF counts hundredths of a second
    first.save(buffer, "GIF", save_all=True, append_images=rest, duration=delay, loop=0)
    return buffer.getvalue()


class _ChildError(Exception):
    """The last line of what a process said that failed."""


def _child(name: str, request: Any) -> Any:
    """The answer of a process that draws with this renderer.

    MuJoCo binds to a renderer when it is imported, and one that does not work may end its process.
    """
    found = subprocess.run(
        [sys.executable, "-m", __name__],
        input=pickle.dumps(request),
        capture_output=True,
        env={
            **os.environ,
            "MUJOCO_GL": name,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    )
    if found.returncode:
        said = found.stderr.decode(errors="replace").strip().splitlines()
        raise _ChildError(said[-1] if said else f"exit code {found.returncode}")
    return pickle.loads(found.stdout)


def _try() -> bool:
    """Draw a white ball; whether anything is seen of it."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><camera pos='0 0 3'/><geom size='1' rgba='1 1 1 1'/></worldbody>"
        "</mujoco>"
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, 32, 32) as drawing:
        drawing.update_scene(data, camera=0)
        return bool(drawing.render().any())


def _film(
    task: str, params: dict[str, Any], moments: Moments | None, seed: int, horizon: int
) -> tuple[Frames, tuple[float, ...], float]:
    import mujoco

    rollout = Rollout(task)
    environment = rollout.simulation()
    every = max(1, round(SECONDS / environment.seconds))
    rollout.horizon = min(horizon, every * FRAMES)
    frames, returns = [], []
    with mujoco.Renderer(environment.model, HEIGHT, WIDTH) as drawing:

        def draw(step: int, total: float) -> None:
            if step % every == 0:
                drawing.update_scene(environment.data, camera=0)
                frames.append(drawing.render())
                returns.append(total)

        rollout.episode(params, seed, moments, draw)
    environment.close()
    return np.stack(frames), tuple(returns), every * environment.seconds


def _main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may print
    request = pickle.loads(sys.stdin.buffer.read())
    with answers:
        pickle.dump(_try() if request is None else _film(*request), answers)


if __name__ == "__main__":
    _main()
