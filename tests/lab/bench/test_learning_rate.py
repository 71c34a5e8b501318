"""`skewflow bench learning-rate`: the search, the tasks, and what is said of them."""

from dataclasses import replace

import pytest
import torch

from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow_lab.bench.learning_rate import report
from skewflow_lab.bench.learning_rate.default_rate import (
    FACTORS,
    DefaultRate,
    DefaultRateConfig,
    reached,
)
from skewflow_lab.bench.learning_rate.experiment import LearningRate, LearningRateConfig
from skewflow_lab.bench.learning_rate.matrix_tasks import ImagePCA
from skewflow_lab.bench.learning_rate.same_rate import SameRate
from skewflow_lab.bench.learning_rate.search import (
    DEFAULT,
    MOST,
    best_of,
    default_rate,
    search,
    train,
)
from skewflow_lab.bench.learning_rate.tasks import NETWORKS, TASKS, MatrixTask, _images
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
    assert "long-copying_64" in names and "long-copying_128" not in names


def test_the_default_rate_of_a_recurrent_net_falls_with_its_length():
    assert default_rate("copying") == pytest.approx(0.44 / 40)
    assert default_rate("long-copying") == pytest.approx(0.44 / 80)
    assert default_rate("tanh-net") == DEFAULT == 0.11


def test_several_orders_of_batches_make_one_task():
    task = TASKS["image-pca"](16, "digits")()
    first, second, *_ = task.weights
    assert len(task.weights) == 4 and not torch.equal(first, second)
    task.backward(0, 1.0)
    assert not torch.equal(first.grad, second.grad)
    alone = [MatrixTask(ImagePCA(_images("digits"), 16, seed=seed)).loss() for seed in range(4)]
    assert task.loss() == pytest.approx(sum(alone) / 4)


def cell(rates, default, **facts):
    """A cell of `bench default-rate`, from losses."""
    made = {"problem": "pca", "weights": [[4, 2]], "start": 1.0, "optimum": 0.0, "floor": 1e-6}
    made |= {"rates": [{"exponent": -n, "loss": loss} for n, loss in enumerate(rates)], "lr": 0.11}
    runs = zip(FACTORS, default, strict=False)
    return made | {"default": [{"factor": f, "loss": loss} for f, loss in runs]} | facts


def test_a_default_rate_is_as_slow_as_the_run_that_comes_near_the_best():
    assert reached(cell([0.5, 0.1], [0.2, 0.12, 0.105])) == 2.0
    assert reached(cell([0.5, 0.1], [0.2, 0.2, 0.2, 0.2, 0.2])) is None
    assert reached(cell([1e-9], [1e-7])) == 1.0  # both have solved it
    assert reached(cell([None, 0.1], [None, 0.1])) == pytest.approx(2**0.5)
    unknown = {"problem": "assignment", "optimum": None, "start": 11.0, "floor": 0.05}
    assert reached(cell([1.0, 2.0], [1.4], **unknown)) == 1.0
    results = DefaultRate().summarise(
        replace(DefaultRate.presets["quick"], num_steps=7),
        {"a": cell([0.1], [0.1]), "b": cell([0.1], [1.0] * 5, problem="mlp")},
    )
    told = DefaultRate().verdict(results)
    assert "in 7 steps" in told and "on 1 of 2 problems; not on mlp (more than 4 times)" in told
    (table,) = DefaultRate().tables(results, {})
    assert table.rows[0][1] == "4 x 2" and [row[-1] for row in table.rows] == [1.0, None]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train_their_orthogonal_weights(name):
    make = NETWORKS[name](16, "digits")
    first, again = make(), make()
    assert train(first, "spectral", "auto", 0.1, 2) == train(again, "spectral", "auto", 0.1, 2)
    for weight, fresh in zip(first.weights, make().weights, strict=True):
        assert not torch.equal(weight, fresh)
        assert float(orthogonality_error(as_matrices(weight.detach())).max()) < 1e-5


def test_a_run_of_default_rate_has_a_row_for_each_problem(tmp_path):
    tiny = DefaultRateConfig(
        problems=("copying", "mlp"), size="tiny", width=8, num_steps=2, data="digits"
    )
    rows = read_json(execute(DefaultRate(), tiny, out=tmp_path) / "summary.json")["results"]["rows"]
    assert [z["problem"] for z in rows] == ["copying", "mlp"]
    assert rows[0]["default rate"] == pytest.approx(0.44 / 30)  # of a sequence of 30
    with pytest.raises(RunError, match="--problems must be of"):
        DefaultRate().cells(replace(tiny, problems=("chess",)))


def test_auto_races_exact_steps_at_one_rate(tmp_path):
    tiny = replace(SameRate.presets["quick"], sizes=(10,), num_steps=3)
    summary = read_json(execute(SameRate(), tiny, out=tmp_path) / "summary.json")
    rows = summary["results"]["rows"]
    assert len(rows) == 3 * 2 and all(z["exact"] < z["start"] for z in rows)
    for z in rows:  # one of them takes on CUDA what "auto" takes here, the other what "dense" does
        adam = z["optimiser"] == "FlowAdam"
        assert z["on CUDA"] == ("dense exp" if adam else "dense polar")
        assert z["cuda"] == (z["exact"] if adam else z["auto"])
    assert "diverges nowhere" in summary["verdict"]
    lost = {**rows[0], "arrived": False, "auto": float("inf")}
    told = SameRate().verdict({"num_steps": 3, "rows": [lost, *rows[1:]]})
    assert "diverges on rotation at d = 10 with FlowSGD" in told and "not on rotation" in told
