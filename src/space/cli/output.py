"""How results are shown: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """The value of `-o`."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Format, typer.Option("--output", "-o", help="`table` for people, `json` for programs.")]


def print_json(value: Any) -> None:
    """Print one JSON value on one line of stdout; a stream of values makes JSON lines."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a table, or tab-separated where stdout is not a terminal, so that `cut` and `awk` work."""
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(_plain(cell) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(_plain(cell)) for cell in row))  # Text: what comes from outside is no markup
    Console().print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one thing, a field a line."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {_plain(value)}")


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """Say how long ago something was."""
    if moment is None:
        return "-"
    seconds = int(((now or datetime.now(UTC)) - moment).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if abs(seconds) >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _plain(value: object) -> str:
    """Make text of a cell; control characters, which a guest may have put there, cannot reach the terminal."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        value = ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    return "".join(character if character.isprintable() else "�" for character in str(value))
