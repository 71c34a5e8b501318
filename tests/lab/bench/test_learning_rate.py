"""`skewflow bench learning-rate`: the search, the tasks, and what is said of them."""

from dataclasses import replace

import pytest
import torch

from skewflow.geometry import orthogonality_error
from skewflow_lab.bench.learning_rate import report
from skewflow_lab.bench.learning_rate.experiment import LearningRate, LearningRateConfig
from skewflow_lab.bench.learning_rate.search import MOST, best_of, search, train
from skewflow_lab.bench.learning_rate.tasks import TASKS
from skewflow_lab.runs.files import RunError, read_json
from skewflow_lab.runs.reproduce import execute

TINY = LearningRateConfig(
    tasks=("rotation",), sizes=(4, 8), middle=8, block_sizes=(2, 4), num_steps=3, data="digits"
)


def test_the_search_goes_on_until_the_best_rate_has_worse_neighbours():
    found = search(lambda e: abs(e + 9.0), [-6, -5])
    assert best_of(found) == -9 and {-10, -9, -8} <= set(found)
    assert len(search(lambda e: float(e), [0])) == MOST


@pytest.mark.parametrize("name", ["rotation", "image-pca", "image-pairs", "tanh-net", "copying"])
def test_runs_of_a_task_start_alike_and_stay_on_the_manifold(name):
    make = TASKS[name](16, "digits")
    first, second = make(), make()
    assert train(first, "rms", 4, 0.05, 2) == train(second, "rms", 4, 0.05, 2)
    for weight, fresh in zip(first.weights, make().weights, strict=True):
        assert not torch.equal(weight, fresh)
        assert float(orthogonality_error(weight.detach())) < 1e-5


@pytest.mark.parametrize("law", ["rms", "spectral", "unbiased"])
def test_a_good_rate_finds_the_rotation(law):
    make = TASKS["rotation"](8, "digits")
    assert train(make(), law, "dense", 0.1, 100) < 0.05
    assert train(make(), law, "dense", 0.0, 1) == pytest.approx(1.0)


def setting(s, d, task="rotation", **best):
    """Parabolas around the best exponent of each law."""
    laws = {
        law: [{"exponent": e, "loss": 1.0 + (e - best[law]) ** 2} for e in range(-8, 0)]
        for law in ("rms", "spectral", "unbiased")
    }
    settings = [
        {"s": s, "law": law, "rates": laws[law], "default": best[law] + 5.0} for law in laws
    ]
    return {"settings": settings, "task": task, "d": d}


def test_spans_of_the_other_laws_follow_from_the_weight():
    cells = [
        setting("dense", 9, rms=-4, spectral=-4, unbiased=-2),
        setting(3, 9, rms=-3, spectral=-4, unbiased=-4),
        setting("dense", 9, "image-pca", rms=-4, spectral=-3, unbiased=-2),
    ]
    results = report.summary(cells, 10, "digits")
    spans = {(z["task"], z["law"]): z for z in results["spans"]}
    assert [spans["rotation", law]["span"] for law in report.LAWS] == [2.0, 1.0, 4.0, 2.0, 1.0]
    assert spans["rotation", "spectral"]["common"] == [2.0**-4]
    assert not spans["rotation", "rms"]["common"]
    assert report.overall(results, "rms") == 2.0
    assert report.within(results, "rms") == (1, 1, [])
    assert report.within(results, "spectral") == (
        *(0, 1),
        ["image-pca at d = 9, s = dense (2 times)"],
    )
    told = report.verdict(results)
    assert "no rate is good at all s and d on rotation" in told
    assert "in 1 of 1 stochastic settings" in told
    assert len(report.tables(results)) == 4


def test_a_run_has_all_cells_and_can_be_made_in_parts(tmp_path):
    folder = execute(LearningRate(), TINY, out=tmp_path)
    summary = read_json(folder / "summary.json")
    assert [(z["d"], z["s"]) for z in summary["results"]["settings"]] == [
        *((4, 4),),
        *((8, "dense"), (8, 4), (8, 2)),
    ]
    assert "rms" in {z["law"] for z in summary["results"]["spans"]}
    assert (folder / "figures" / "learning-rate.png").exists()


def test_wrong_settings_are_refused():
    for wrong in ({"tasks": ("chess",)}, {"middle": 5}, {"block_sizes": (2,)}):
        with pytest.raises(RunError, match="must be"):
            LearningRate().cells(replace(TINY, **wrong))
    names = LearningRate().cells(LearningRateConfig(data="digits"))
    assert "copying_256" in names and "copying_1024" not in names
