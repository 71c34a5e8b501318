"""The command `skewflow`: experiments and benchmarks by name."""

import sys
from importlib.util import find_spec

import skewflow

NEEDED = ("tyro", "rich", "matplotlib", "jinja2")


def main() -> None:
    """Read the command line and run what it names; without arguments print the help."""
    args = sys.argv[1:] or ["--help"]
    if args == ["--version"]:
        print(f"skewflow {skewflow.__version__}")
        return
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise SystemExit(
            "skewflow: install the laboratory, which has this command, by "
            f'`pip install "skewflow[lab]"`; missing here: {", ".join(missing)}.'
        )
    import tyro
    from rich.console import Console

    from skewflow.errors import SkewflowError

    from .bench.conv_norms import conv_norms
    from .bench.edge_completion import edge_completion
    from .bench.factored import factored
    from .bench.givens_layer import givens_layer
    from .bench.givens_policy import givens_policy
    from .bench.learning_rate.default_rate import DefaultRate
    from .bench.learning_rate.experiment import LearningRate
    from .bench.learning_rate.same_rate import SameRate
    from .bench.online_pca import online_pca
    from .bench.processes import processes
    from .bench.quality.experiment import Quality
    from .bench.recurrence import recurrence
    from .bench.rollouts import rollouts
    from .bench.second_moment import second_moment
    from .bench.sharded import sharded
    from .bench.step import command as step
    from .bench.training import command as training
    from .bench.two_commits import two_commits
    from .bench.which_end import which_end
    from .paper import EXPERIMENTS
    from .report.collect import collect
    from .report.demo import demo
    from .report.page import report
    from .results.command import results
    from .runs import reproduce

    bench = tyro.extras.SubcommandApp()
    bench.command(name="step")(step.main)
    bench.command(name="training")(training.main)
    for command in (edge_completion, factored, online_pca, processes, recurrence, rollouts):
        bench.command(name=command.__name__.replace("_", "-"))(command)
    bench.command(name="conv-norms")(conv_norms)
    bench.command(name="givens-layer")(givens_layer)
    bench.command(name="givens-policy")(givens_policy)
    bench.command(name="second-moment")(second_moment)
    bench.command(name="sharded")(sharded)
    bench.command(name="two-commits")(two_commits)
    bench.command(name="which-end")(which_end)
    rates = LearningRate()
    bench.command(name="learning-rate", help=rates.title)(reproduce.command(rates, args))
    default = DefaultRate()
    bench.command(name="default-rate", help=default.title)(reproduce.command(default, args))
    same = SameRate()
    bench.command(name="same-rate", help=same.title)(reproduce.command(same, args))
    quality = Quality()
    bench.command(name="quality", help=quality.title)(reproduce.command(quality, args))

    app = tyro.extras.SubcommandApp()
    app.command(bench, name="bench", help="Measure what something costs, against its rivals.")
    experiments = reproduce.app(EXPERIMENTS, args)
    app.command(experiments, name="reproduce", help="Run an experiment by name.")
    app.command(name="collect")(collect)
    app.command(name="report")(report)
    app.command(name="results")(results)
    app.command(name="demo")(demo)
    try:
        app.cli(
            prog="skewflow",
            description="Optimisation on orthogonal matrices: benchmarks and experiments. "
            "`skewflow --version` prints the version.",
            args=args,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
        )
    except SkewflowError as error:  # its text is written for the user; any other one is a bug
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
