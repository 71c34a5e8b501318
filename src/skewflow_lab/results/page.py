"""The page docs/results.md."""

import re
from pathlib import Path

from .records import DAGGER, Recorded
from .sections import sections
from .tables import MOST_COLUMNS, MOST_ROWS, Rows, markdown, tables

HEAD = f"""# Results

*What was measured, by which command, on which machine, and does it still hold?* `skewflow results`
writes this page from the files in [results](../results): no number is typed by hand. Each one is as
of the commit in its section. A {DAGGER} says that the code it depends on has changed since, so the
command may give other numbers today. A `+` says that the working tree held changes besides that
commit.

| result | machine | commit | date |
|---|---|---|---|
"""


def page(results: Path) -> str:
    """The text of the page."""
    records = sections(results)
    rows = [
        f"| [{r.title}](#{anchor(r.title)}) | {r.machine} | {r.commit} | {r.date} |\n"
        for r in records
    ]
    return HEAD + "".join(rows) + "".join(section(record) for record in records)


def anchor(title: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-")


def section(record: Recorded) -> str:
    """The section of one result: its origin, its verdict, its figure and tables."""
    commands = "\n".join(record.commands)
    kind = "folder" if record.file.is_dir() else "file"
    parts = [
        f"## {record.title}",
        f"```\n{commands}\n```",
        f"{record.machine}, {record.date}, commit {record.commit}; {kind} "
        f"[{record.path}](../results/{record.path}).",
        record.verdict,
        record.note,
        f"![{record.title}](../results/{record.figure})" if record.figure else "",
        *(_table(record, name, rows) for name, rows in tables(record).items()),
    ]
    return "\n" + "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _table(record: Recorded, name: str, rows: Rows) -> str:
    """A table, or only a link if the table is too large to read."""
    columns = record.columns.get(name)
    width = len(columns) if columns is not None else len({key for row in rows for key in row})
    inside = record.file.is_dir()
    link = f"[{name}](../results/{record.path}/tables/{name}.csv)" if inside else f"`{name}`"
    if len(rows) > MOST_ROWS or (columns is None and width > MOST_COLUMNS):
        return f"Table {link}: {len(rows)} rows, in the file."
    return f"Table {link}:\n\n{markdown(rows, columns)}"
