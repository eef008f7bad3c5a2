"""Owns what a command prints: data to stdout, everything else to stderr, plain unless a terminal.

Rows go out as an aligned table, as JSON, as YAML or as bare names; a script gets the same fields in
each. NO_COLOR and TERM are the only variables that are looked at here.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

FORMATS = ("table", "json", "yaml", "name")

Row = Mapping[str, Any]

NO_LEADER_HINT = "moldau broker status, or the brokers' logs, say why"


def color_wanted(*, err: bool = False) -> bool:
    """Colours for people only: a terminal that has some, and no NO_COLOR."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str = "") -> None:
    """Something for the person at the terminal, beside the data."""
    click.echo(text, err=True, color=color_wanted(err=True))


def emit_rows(rows: Sequence[Row], output: str, *, name: str) -> None:
    """A list. `name` is the field that identifies a row, for -o name."""
    if output == "json":
        emit_json(rows)
    elif output == "yaml":
        emit_yaml(list(rows))
    elif output == "name":
        for row in rows:
            click.echo(str(row[name]))
    elif rows:
        emit_table(rows)


def emit_document(document: Mapping[str, Any], output: str, *, name: str) -> bool:
    """One object. False if it was asked for as a table, which only the command can lay out."""
    if output == "json":
        emit_json(document)
    elif output == "yaml":
        emit_yaml(document)
    elif output == "name":
        click.echo(str(document[name]))
    else:
        return False
    return True


def emit_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def emit_yaml(value: object) -> None:
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=False)
    click.echo(text, nl=False)


def emit_table(rows: Sequence[Row], indent: str = "") -> None:
    """Columns as wide as they need to be: never wrapped and never cut, so that grep works."""
    titles = list(rows[0])
    cells = [[cell_text(row[title]) for title in titles] for row in rows]
    right = [all(_is_number(row[title]) for row in rows) for title in titles]
    heads = [title.replace("_", " ").upper() for title in titles]
    widths = [
        max(len(heads[column]), *(len(line[column]) for line in cells))
        for column in range(len(titles))
    ]
    color = color_wanted()
    click.echo(indent + click.style(_line(heads, widths, right), bold=True), color=color)
    for line in cells:
        click.echo(indent + _line(line, widths, right))


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = [
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(parts).rstrip()


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def cell_text(value: object) -> str:
    """A value in a table; nothing is a dash, so that columns stay columns."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value) or "-"
    return str(value)


def one_line(data: bytes | None, characters_max: int) -> str | None:
    """Bytes as something for a table: what is not printable as a space, and cut if need be."""
    if data is None:
        return None
    # Four bytes are a character at most: a message of megabytes is not read for its beginning.
    text = data[: 4 * characters_max + 4].decode(errors="replace")
    shown = "".join(character if character.isprintable() else " " for character in text).strip()
    is_cut = len(shown) > characters_max or len(data) > 4 * characters_max + 4
    return shown[: characters_max - 1] + "…" if is_cut else shown


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed; without a terminal there is nobody to ask."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        from moldau.cli.errors import CommandError, ExitCode

        raise CommandError(
            f"{question} Nobody is here to answer", hint="add -y to say yes", code=ExitCode.USAGE
        )
    if not click.confirm(question, err=True):
        raise click.Abort


def counted(count: int, noun: str) -> str:
    """1 message, 2 messages."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_bytes(count: float) -> str:
    """1536 → 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@contextmanager
def progress_bar(title: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, no_color=not color_wanted(err=True))
    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.update(task, completed=count)
