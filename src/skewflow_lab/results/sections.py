"""The sections of the page: one entry for each recorded result, in the order of the page."""

from pathlib import Path

from .records import BENCH, Recorded
from .sections_of_layers import layers

STEPS = (
    "case",
    "SGD",
    "FlowSGD s=2",
    "SGD momentum",
    "FlowSGD s=2 momentum",
    "FlowSGD s=16",
    "FlowSGD s=32",
    "FlowSGD s=64",
    "FlowSGD dense",
    "exact exp",
    "pogo-torch",
    "geoopt RiemannianSGD",
    "geotorch",
    "torch orthogonal",
)
TRAINING = ("method", "mode", "seconds", "overhead_percent", "note")
RACES = (
    "problem",
    "shape",
    "best rival",
    "gap",
    "its s",
    "which auto",
    "auto, s",
    "auto / rival",
    "by hand",
    "auto / by hand",
)
RACE_NOTE = (
    "`auto` is the best of `FlowSGD`, `FlowAdam` and natural steps with that block size. The gap "
    "is the best final gap of the rivals; `auto / rival` is the time in which `auto` reaches it, "
    "over the time of the best rival. [The rules](how-to/race-optimisers.md#the-rules)."
)
STEP_NOTE = (
    "Milliseconds for one `step()`, medians over the rounds, and in brackets the median of the "
    "ratio inside a round to torch's SGD, with momentum to SGD with momentum."
)
TRAINING_NOTE = (
    "Seconds of a training step, and the overhead over SGD in percent. Steps that a CUDA graph "
    "cannot capture ran eagerly."
)


def sections(results: Path) -> list[Recorded]:
    """Every result that the page shows."""

    def at(path: str, title: str, top: str | None = None, **kwargs: object) -> Recorded:
        return Recorded(results, path, title, top, **kwargs)  # type: ignore[arg-type]

    return [
        at(
            f"{BENCH}/step_h200.json",
            "One step on an H200",
            "optim",
            command="skewflow bench step --d 2048 4096 8192 16384 --block-sizes 2 8 32 64 "
            "--largest-cubic 4096 --rounds 5 --device cuda",
            note=STEP_NOTE,
            columns={"rows": STEPS},
        ),
        at(
            f"{BENCH}/step_wide_h200.json",
            "One step of wide weights on an H200",
            "optim",
            command="skewflow bench step --d 2048 4096 --k 512 --wide --block-sizes 2 32 "
            "--largest-cubic 0 --rounds 5 --device cuda",
            note=STEP_NOTE,
            columns={"rows": STEPS},
        ),
        at(
            f"{BENCH}/step_plainnet110_h200.json",
            "One step of the convolutions of PlainNet-110 on an H200",
            "optim",
            command="skewflow bench step --shapes plainnet110 --block-sizes 2 16 --largest-cubic 0 "
            "--rounds 7 --device cuda",
            note=STEP_NOTE,
            columns={"rows": STEPS},
        ),
        at(
            f"{BENCH}/step.csv",
            "One step on two cores",
            "optim",
            command="skewflow bench step --d 1024 2048",
            note="Milliseconds, and the median of the ratio inside a round to its base.",
            columns={"step": ("case", "method", "p20", "p50", "p80", "ratio", "base")},
        ),
        at(
            f"{BENCH}/two_commits_cpu.json",
            "One step before and after the library was reorganised, on one core",
            "optim",
            command="skewflow bench two-commits OLD NEW --turns 15",
            note="Microseconds of CPU time for one `step()` of each commit, and the median of the "
            "ratios of successive turns, new over old. `OLD` and `NEW` are worktrees; the file "
            "names their commits.",
            columns={"rows": ("case", "ratio", "old_us", "new_us")},
        ),
        at(
            f"{BENCH}/training_plainnet110_h200.json",
            "A training step of PlainNet-110 on an H200",
            "nn",
            command="skewflow bench training --network plainnet110 --precision bf16 --mode graph",
            note=TRAINING_NOTE,
            columns={"rows": TRAINING},
        ),
        at(
            f"{BENCH}/training_plainnet110_eager_h200.json",
            "The same in float32 without a CUDA graph",
            "nn",
            command="skewflow bench training --network plainnet110",
            note=TRAINING_NOTE,
            columns={"rows": TRAINING},
        ),
        at(
            f"{BENCH}/training_vit_h200.json",
            "A training step of a transformer on an H200",
            "nn",
            command="skewflow bench training --network vit --precision bf16 --mode graph",
            note=TRAINING_NOTE,
            columns={"rows": TRAINING},
        ),
        at(
            "quality/h200",
            "Races on an H200",
            "optim",
            note=RACE_NOTE,
            figure="quality/h200/figures/quality.png",
            columns={"problems": RACES},
        ),
        at(
            "quality/cpu",
            "Races on two cores",
            "optim",
            note=RACE_NOTE,
            figure="quality/cpu/figures/quality.png",
            columns={"problems": RACES},
        ),
        at(
            f"{BENCH}/online_pca.json",
            "Online PCA with natural steps on an H200",
            "optim",
            command="skewflow bench online-pca --device cuda --rounds 5 --save",
            note="Steps and seconds to the gap; medians of the rounds.",
            columns={
                "rows": (
                    "problem",
                    "shape",
                    "gap",
                    "pogo steps",
                    "pogo seconds",
                    "auto steps",
                    "auto seconds",
                    "auto-natural steps",
                    "auto-natural seconds",
                    "pogo / auto",
                    "pogo / auto-natural",
                )
            },
        ),
        at(
            f"{BENCH}/factored_cuda.json",
            "Factored steps on an H200",
            "optim",
            command="skewflow bench factored --device cuda --rounds 5 --save",
            note="`layer`: forward pass, backward pass and exact step of a linear layer, over the "
            "same with SGD. `ranks`: the factored step beside the dense one.",
        ),
        at(
            f"{BENCH}/factored_cpu.json",
            "Factored steps on two cores",
            "optim",
            command="skewflow bench factored --device cpu --rounds 5 --save",
        ),
        at(
            f"{BENCH}/which_end_cuda.json",
            "Which step wins for a linear layer, on an H200",
            "optim",
            command="skewflow bench which-end --device cuda --save",
            note="Milliseconds. [Which step](explanation/which-step.md) draws them.",
        ),
        at(
            f"{BENCH}/which_end_cpu.json",
            "Which step wins for a linear layer, on two cores",
            "optim",
            command="skewflow bench which-end --device cpu --save",
            note="Milliseconds.",
        ),
        at(
            "cifar/h200",
            "PlainNet-110 on CIFAR-10",
            "nn",
            figure="cifar/h200/figures/curves.png",
        ),
        at(
            "cifar/cpu",
            "PlainNet-20 on a part of CIFAR-10, on one core",
            "nn",
            figure="cifar/cpu/figures/curves.png",
            note="Short trainings, far below the accuracy of full ones. The search ended at the "
            "smallest learning rate of vanilla and ortinit, and at the smallest scale of s = 2: "
            "smaller ones may do better.",
        ),
        *layers(at),
        at("mnist", "A two-layer network on MNIST", "nn", figure="mnist/figures/mnist.png"),
        at(
            "rnn/h200",
            "Recurrent nets: copying, and MNIST pixel by pixel",
            "nn",
            figure="rnn/h200/figures/rnn.png",
            note="The LSTM has one learning rate that was not searched.",
        ),
        at(
            "rnn/cpu",
            "Recurrent nets on one core, every method searched",
            "nn",
            figure="rnn/cpu/figures/rnn.png",
        ),
        at(
            "rl",
            "Policies by evolution strategies",
            "es",
            outdated=True,
            note="One learning rate for all methods, which was not searched: it judges no claim of "
            "the paper. The command has other options today.",
            figure="rl/figures/curves.png",
            columns={
                "returns": (
                    "task",
                    "hidden",
                    "method",
                    "seeds",
                    "generations",
                    "mean return",
                    "least",
                    "largest",
                    "drift",
                    "seconds a run",
                )
            },
        ),
        at(
            f"{BENCH}/rollouts_cpu.json",
            "Generations of policies on two cores",
            "es",
            command="skewflow bench rollouts --save",
        ),
        at(
            f"{BENCH}/rollouts.json",
            "Rollouts of the Humanoid on an H200",
            "es",
            command="skewflow bench rollouts --backend mjx --task Humanoid --batch 4096 "
            "--hidden 200 --steps 500 --rounds 3 --save",
        ),
        at(
            "max-cut",
            "Max-cut on Gset",
            "problems",
            figure="max-cut/figures/vectors.png",
        ),
        at(
            "synchronize",
            "Poses of SLAM graphs",
            "problems",
            figure="synchronize/figures/paths.png",
        ),
        at(
            "learning-rate",
            "Learning rates of every law of the step",
            "optim",
            figure="learning-rate/figures/learning-rate.png",
            columns={"best": ()},
        ),
        at("table1", "Table 1 of the paper: operations of an update", "optim"),
        at("table2", "Table 2 of the paper: sorting by a flow", "flows"),
        at("variance", "Variance of every sampler", "samplers"),
        at("rho", "The ablation of Sec. 9.2", "optim", figure="rho/figures/rho.png"),
        at(
            "numerics",
            "Exponentials under low precision",
            "kernels",
            figure="numerics/figures/numerics.png",
        ),
        at(
            "convergence",
            "The bound of Theorem 5.1",
            "flows",
            figure="convergence/figures/convergence.png",
        ),
        at(
            "haar", "Random rotations against Haar measure", "flows", figure="haar/figures/haar.png"
        ),
        at(
            "qaplib",
            "Quadratic assignment on QAPLIB",
            "problems",
            figure="qaplib/figures/qaplib.png",
            note="The search is random: a method's count moves by a few from seed to seed.",
        ),
        at(
            "isomorphism",
            "Graph isomorphism on 200 pairs",
            "problems",
            figure="isomorphism/figures/isomorphism.png",
        ),
        at(
            "metric-learning",
            "Metric learning",
            "problems",
            figure="metric-learning/figures/metric-learning.png",
            note="Errors in percent, seconds of a fit. On MNIST rivals whose matrices are "
            "quadratic in the number of images train on 4,000 of them.",
        ),
        at(
            "random-features",
            "Random features against the number of rotations",
            "problems",
            figure="random-features/figures/random-features.png",
        ),
        at(
            f"{BENCH}/second_moment.json",
            "Which second moment FlowAdam has",
            "optim",
            command="skewflow bench second-moment --save",
            note="The final loss of each candidate at its best rate; `plane` is FlowAdam's.",
        ),
        at(
            f"{BENCH}/sharded.json",
            "Sharded steps on two cores",
            "optim",
            command="skewflow bench sharded --save",
            note="`rows`: times for all four weights, on cores that other programs share. `model`: "
            "the cost on 64 GPUs [in theory](how-to/shard-weights.md#the-cost-on-64-gpus).",
        ),
        at(
            f"{BENCH}/results.csv",
            "Edge completion, recurrences by hand, and two processes on two cores",
            "optim",
            command="skewflow bench edge-completion --save\nskewflow bench recurrence --save\n"
            "skewflow bench processes --save",
            note="The two processes had real-time priority, beside other programs.",
            columns={"results": ("benchmark", "case", "unit", "p20", "p50", "p80", "commit")},
        ),
    ]
