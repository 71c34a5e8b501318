"""The table and the CSV rows of `skewflow bench training`."""

from typing import Any

from rich.table import Table

from ...measure.timing import percentiles

Row = dict[str, Any]


def heading(result: dict[str, Any]) -> str:
    """The heading of the table, with the machine."""
    config, where = result["config"], result["environment"]
    layout = ", channels last" if result["channels_last"] else ""
    return (
        f"seconds a training step of {config['network']}, and the overhead over SGD in percent\n"
        f"{result['parameters']:,} parameters, {result['orthogonal_weights']} orthogonal weights, "
        f"batch {config['batch']}, {config['precision']}, {config['mode']}{layout}\n"
        f"{where['device']}, threads: {where['threads']}, torch {where['torch']}"
    )


def table(result: dict[str, Any]) -> Table:
    """A row for each method; in mode graph, a method that was not captured is marked as eager."""
    found = Table("method")
    for title in ("seconds", "overhead, %"):
        found.add_column(title, justify="right")
    for row in result["rows"]:
        apart = row["mode"] not in (None, result["config"]["mode"])
        name = row["method"] + (f" ({row['mode']})" if apart else "")
        found.add_row(
            name, _cell(row["seconds"], "{:.4g}"), _cell(row["overhead_percent"], "{:+.1f}")
        )
    return found


def notes(result: dict[str, Any]) -> list[str]:
    """Notes under the table: block sizes, and why a number is missing or eager."""
    lines = []
    for row in result["rows"]:
        if row["block_sizes"]:
            lines.append(f"{row['method']}: s = {', '.join(map(str, row['block_sizes']))}")
    missing: dict[str, list[str]] = {}
    for row in result["rows"]:
        if row["note"]:
            missing.setdefault(row["note"], []).append(row["method"])
    return lines + [f"{', '.join(methods)}: {note}" for note, methods in missing.items()]


def saved_rows(result: dict[str, Any]) -> list[Row]:
    """The measurements as rows of results/bench/training.csv."""
    config = result["config"]
    return [
        {
            **{key: config[key] for key in ("network", "depth", "width", "batch", "precision")},
            "channels_last": result["channels_last"],
            "method": row["method"],
            "mode": row["mode"],
            "block_sizes": " ".join(map(str, row["block_sizes"])),
            "unit": "s",
            **percentiles(row["times"]),
            "overhead_percent": _cell(row["overhead_percent"], "{:.4g}", ""),
            "rounds": len(row["times"]),
            **result["environment"],
        }
        for row in result["rows"]
        if row["seconds"] is not None
    ]


def _cell(value: float | None, form: str, nothing: str = "-") -> str:
    return nothing if value is None else form.format(value)
