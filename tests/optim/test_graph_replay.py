"""Steps that are one CUDA graph: what is copied, written, captured anew and dropped, on the CPU.

A graph is played by a closure, which is called again with the tensors it was captured with.
"""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from helpers import randn
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.optim.executors.dense_batch import DenseBatch
from skewflow.optim.executors.graph_replay import WARM_UP, GraphReplay, has_graph


class Played:
    """In place of `Graphs`, and of a graph."""

    def __init__(self, device=None, fails=False):
        self.fails, self.captures, self.replays, self.follows = fails, 0, 0, 0

    def capture(self, work):
        if self.fails:
            work()  # up to the error nothing has run on the device
            raise RuntimeError("operation not permitted when stream is capturing")
        self.captures += 1
        played = copy.copy(self)
        played.replay = lambda: self.run(work)
        return played

    def run(self, work):
        assert self.follows > self.replays  # the stream has been looked at before
        self.replays += 1
        work()

    def follow(self):
        self.follows += 1


class Log:
    """A step that notes what it was given."""

    def __init__(self):
        self.places, self.values, self.numbers = [], [], []

    def __call__(self, grads, lr):
        self.places.append([g.data_ptr() for g in grads])
        self.values.append([g.item() for g in grads])
        self.numbers.append(lr.item())


def test_gradients_that_stay_are_read_where_they_are():
    graphs, log = Played(), Log()
    replayed, grads = GraphReplay(graphs), [torch.ones(1), torch.ones(1)]
    told = []
    for step in range(5):
        grads[1].fill_(step)
        told.append(replayed(log, grads, 0.5, "fixed"))
    assert told == [False] * WARM_UP + [True] * 3
    assert (graphs.captures, graphs.replays) == (1, 3)
    assert log.places == [[g.data_ptr() for g in grads]] * 5
    assert log.values == [[1.0, float(step)] for step in range(5)]


def test_gradients_that_move_are_copied_from_then_on():
    graphs, log = Played(), Log()
    replayed = GraphReplay(graphs)
    kept = [[torch.full((1,), 2.0 * s), torch.full((1,), 2.0 * s + 1)] for s in range(7)]
    for grads in kept:
        replayed(log, grads, 0.5, "fixed")
    assert log.values == [[g.item() for g in grads] for grads in kept]
    assert (graphs.captures, graphs.replays) == (2, 5)
    own = log.places[-1]
    assert log.places[WARM_UP + 1 :] == [own] * 4
    assert all(own != [g.data_ptr() for g in grads] for grads in kept)
    replayed(log, kept[2], 0.5, "fixed")  # which the first graph read
    assert log.places[-1] == own and log.values[-1] == [4.0, 5.0]


def test_a_learning_rate_is_written_when_it_changes(monkeypatch):
    graphs, log = Played(), Log()
    replayed, grads = GraphReplay(graphs), [torch.ones(1)]
    writes = []
    fill = torch.Tensor.fill_
    monkeypatch.setattr(torch.Tensor, "fill_", lambda t, x: (writes.append(x), fill(t, x))[1])
    rates = [0.1, 0.2, 0.3, 0.3, 0.4, 0.4, 0.1]
    for lr in rates:
        replayed(log, grads, lr, "fixed")
    assert log.numbers == rates
    assert writes == [0.4, 0.1]
    assert graphs.captures == 1


def test_other_numbers_drop_the_graph_and_warm_up_again():
    graphs, log = Played(), Log()
    replayed, grads = GraphReplay(graphs), [torch.ones(1)]
    told = [replayed(log, grads, 0.1, fixed) for fixed in "aaaabbbbabab"]
    assert told == [False, False, True, True] * 2 + [False] * 4
    assert graphs.captures == 2 and len(log.values) == 12


def test_a_capture_that_fails_is_not_tried_again_and_the_step_is_taken():
    graphs, taken = Played(fails=True), []
    replayed, grads = GraphReplay(graphs), [torch.ones(1)]
    for _ in range(5):
        before = len(taken)
        assert not replayed(lambda G, lr: taken.append(lr.item()), grads, 0.1, "fixed")
        taken[before:] = taken[-1:]  # of the capture only the launches are known to the device
    assert taken == [0.1] * 5 and graphs.captures == 0


SHAPES = [(9, 9), (9, 9), (9, 4), (9, 4), (3, 8, 8)]
"""No shape of one matrix, which has a step of its own on the CPU."""


@pytest.fixture
def on_cpu(monkeypatch):
    """Batches on the CPU take their steps as those on CUDA do, but for what is not finite."""
    made, begin = [], DenseBatch.__init__

    def with_graph(self, members, settings):
        begin(self, members, settings)
        if settings.update.beta2 is None and self._retraction != "cayley":
            made.append(Played())
            self._replay = GraphReplay(made[-1])

    monkeypatch.setattr(DenseBatch, "__init__", with_graph)
    return made


def stepped(
    steps, generator, *, flow=FlowSGD, dtype=torch.float32, change=lambda o, n: o, **options
):
    generator.manual_seed(0)
    params = [
        nn.Parameter(orthogonal_(torch.empty(s), generator=generator).to(dtype)) for s in SHAPES
    ]
    optimizer = flow(params, lr=0.1, block_size="dense", **options)
    for step in range(steps):
        for p in params:
            p.grad = randn(*p.shape, generator=generator, dtype=dtype)
        optimizer = change(optimizer, step)
        params = optimizer.param_groups[0]["params"]
        optimizer.step()
    return params, optimizer


def schedule(optimizer, step):
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + step // 2)
    optimizer.param_groups[0]["momentum"] = 0.9 if step < 6 else 0.5
    return optimizer


def copied(optimizer, step):
    grads = [p.grad for p in optimizer.param_groups[0]["params"]]
    if step == 4:
        optimizer = pickle.loads(pickle.dumps(copy.deepcopy(optimizer)))
    for p, grad in zip(optimizer.param_groups[0]["params"], grads, strict=True):
        p.grad = grad
    return optimizer


def loaded(optimizer, step):
    if step == 4:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return optimizer


def moved(optimizer, step):
    if step == 4:
        for p in optimizer.param_groups[0]["params"]:
            p.data = p.data.clone()
    return optimizer


def without_one(optimizer, step):
    if 4 <= step < 8:
        optimizer.param_groups[0]["params"][1].grad = None
    return optimizer


CHANGES = [schedule, copied, loaded, moved, without_one]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("nesterov", [False, True])
def test_replays_give_the_bits_of_plain_steps(change, dtype, nesterov, generator, request):
    options = {"momentum": 0.9, "nesterov": nesterov, "dtype": dtype, "change": change}
    plain, _ = stepped(12, generator, **options)
    made = request.getfixturevalue("on_cpu")
    params, _ = stepped(12, generator, **options)
    assert sum(graphs.replays for graphs in made) >= 12
    for p, q in zip(plain, params, strict=True):
        assert torch.equal(p, q)


def test_torch_is_told_that_a_replay_has_written(on_cpu, generator):
    params, optimizer = stepped(5, generator, dtype=torch.bfloat16)
    before = [p._version for p in params]
    masters = [optimizer.state[p]["master"] for p in params]
    optimizer.step()
    assert all(p._version > version for p, version in zip(params, before, strict=True))
    optimizer.step()  # no one else has written, so the masters stay
    assert all(optimizer.state[p]["master"] is m for p, m in zip(params, masters, strict=True))


@pytest.mark.parametrize("options", [{"retraction": "cayley"}, {"flow": FlowAdam}], ids=str)
def test_steps_that_need_the_host_are_never_captured(options, on_cpu, generator):
    stepped(5, generator, **options)
    assert [graphs.captures for graphs in on_cpu] == [0] * len(on_cpu)


def test_a_users_capture_gets_plain_steps(on_cpu, generator, monkeypatch):
    def capturing(optimizer, step):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: step in (1, 4, 5))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        return optimizer

    stepped(8, generator, change=capturing)
    # The plain steps 0 and 2 warm up; 3, 6 and 7 are replayed.
    assert [graphs.replays for graphs in on_cpu] == [3] * len(on_cpu)


@pytest.mark.parametrize(
    "sizes, device, dtype, expected",
    [
        ([(2048, 2048), (2048, 2048)], "cuda", torch.float32, True),
        ([(2048, 2048), (2048, 2048), (2, 2)], "cuda", torch.float32, False),
        ([(8, 8)], "cuda", torch.float64, False),
        ([(8, 8)], "cpu", torch.float32, False),
    ],
)
def test_small_points_of_float32_on_cuda_have_a_graph(sizes, device, dtype, expected):
    with FakeTensorMode():
        points = [torch.empty(size, dtype=dtype, device=device) for size in sizes]
        assert has_graph(points) == expected
