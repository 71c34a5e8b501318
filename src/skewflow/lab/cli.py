"""The command `skewflow`: experiments and benchmarks by name."""

import tyro

from .bench.step import StepBench
from .bench.step import main as bench_step


def main() -> None:
    """Read the command line and run what it names."""
    app = tyro.extras.SubcommandApp()
    app.command(name="bench-step")(_bench_step)
    app.cli(description="skewflow: optimisation on orthogonal matrices.")


def _bench_step(config: tyro.conf.OmitArgPrefixes[StepBench]) -> None:
    """Time one step of FlowSGD and of everything that could be taken instead."""
    bench_step(config)
