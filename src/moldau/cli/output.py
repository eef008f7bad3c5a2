"""What a command prints: data to stdout, everything else to stderr, colour only on a terminal.

Rows are printed as an aligned table, JSON, YAML or bare names, with the same fields in each.
"""

import json
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from moldau.cli.errors import CommandError, ExitCode
from moldau.client.errors import (
    ADDRESS_HINT,
    LOGIN_HINT,
    PASSWORD_HINT,
    SECURITY_HINT,
    TOKEN_HINT,
    TOPIC_EXISTS_HINT,
    NotFoundError,
)
from moldau.model.errors import MoldauError
from moldau.model.words import counted as counted

FORMATS = ("table", "json", "yaml", "name")

Row = Mapping[str, Any]

NO_LEADER_HINT = "see moldau broker status and the brokers' logs"
_OPTION_HINTS = {
    ADDRESS_HINT: "-b HOST:PORT or MOLDAU_BROKERS",
    LOGIN_HINT: "pass --user NAME, or log in: moldau login",
    PASSWORD_HINT: "check name and password: --user and --password-file",
    SECURITY_HINT: "check --user, --password-file, --mechanism, --tls and --cafile",
    "option sasl.jaas.config, or sasl.username and sasl.password": "--user and --password-file",
    "option ssl.truststore.certificates or ssl.truststore.location": "--cafile FILE",
    "see options ssl.keystore.location, ssl.keystore.certificate.chain and ssl.keystore.key": (
        "see --certfile and --keyfile"
    ),
    "see option security.protocol, and https:// addresses": "--tls or --cafile FILE",
    "see option ssl.keystore.location": "see --certfile",
    "does the broker require a user? see option security.protocol": (
        "does the broker require a user? pass --user NAME"
    ),
    "see option security.protocol": "see --tls",
    "see security.protocol ·": "see --user and --tls ·",
    "use https:// in place of http://": "pass --cafile FILE, or --tls",
    "set option security.protocol to SSL or SASL_SSL": "pass --tls or --cafile FILE",
    TOKEN_HINT: "it may have expired: moldau login",
    TOPIC_EXISTS_HINT: "pass --if-not-exists to ignore this",
}
"""Hints of the Python clients name arguments; the command line has options instead."""

_FILE_OPTIONS = {
    "option ssl.ca.location": "--cafile",
    "option ssl.certificate.location": "--certfile",
    "option ssl.key.location": "--keyfile",
    "options ssl.keystore…": "--certfile and --keyfile",
    "see ssl.keystore.certificate.chain and ssl.keystore.key": "pass both, or one file with both",
    "option ssl.key.password": "MOLDAU_KEY_PASSWORD",
}
"""The same in messages, too: the user knows the file by its option."""


def color_wanted(*, err: bool = False) -> bool:
    """True for a terminal with colours, unless NO_COLOR is set."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str = "") -> None:
    """Print a message for the user to stderr."""
    click.echo(text, err=True, color=color_wanted(err=True))


def report(message: str, hint: str = "") -> None:
    """Print an error, one `error:` per line of the message, and its hint."""
    color = color_wanted(err=True)
    hint = with_options(hint)
    for argument, option in _FILE_OPTIONS.items():
        message = message.replace(argument, option)
    for line in message.splitlines() or [message]:
        click.echo(click.style("error:", fg="red", bold=True) + f" {line}", err=True, color=color)
    # Errors that come through Spark as text already contain their hint.
    if hint and hint not in message:
        click.echo(click.style("hint:", fg="cyan", bold=True) + f"  {hint}", err=True, color=color)


def with_options(hint: str) -> str:
    """A hint of the Python clients, in options of the command line."""
    for argument, option in (_OPTION_HINTS | _FILE_OPTIONS).items():
        hint = hint.replace(argument, option)
    return hint


def report_error(error: MoldauError) -> None:
    """Print an error of ours; of a list of problems, each with its hint."""
    problems = getattr(error, "problems", None)
    if problems:
        for problem in problems:
            report(problem.text, problem.hint)
    else:
        report(str(error), error.hint)


def emit_rows(rows: Sequence[Row], output: str, *, name: str, if_empty: str = "") -> None:
    """Print a list. `name` is the field to print for -o name; `if_empty` replaces the table."""
    if output == "json":
        emit_json(rows)
    elif output == "yaml":
        emit_yaml(list(rows))
    elif output == "name":
        for row in rows:
            click.echo(str(row[name]))
    elif rows:
        emit_table(rows)
    elif if_empty:
        say(if_empty)


def emit_document(
    document: Mapping[str, Any], output: str, *, name: str, is_stream: bool = False
) -> bool:
    """Print one object. False for a table, which the command lays out itself.

    In a stream, JSON is one line, and YAML one of several documents.
    """
    if output == "json":
        emit_json(document, indent=None if is_stream else 2)
    elif output == "yaml":
        click.echo("---\n" * is_stream, nl=False)
        emit_yaml(document)
    elif output == "name":
        click.echo(str(document[name]))
    else:
        return False
    return True


def emit_json(value: object, *, indent: int | None = 2) -> None:
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False))


def emit_yaml(value: object) -> None:
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=False)
    click.echo(text, nl=False)


def emit_table(rows: Sequence[Row], indent: str = "") -> None:
    """Print columns, never wrapped or shortened, so that grep works."""
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
    """A value in a table; a dash if there is none."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value) or "-"
    return str(value)


def printable(text: str) -> str:
    """The text with a space for every other character."""
    return "".join(character if character.isprintable() else " " for character in text)


def one_line(data: bytes | None, characters_max: int) -> str | None:
    """Bytes for a table: unprintable characters become spaces, long text ends with …."""
    if data is None:
        return None
    # A character has at most four bytes; do not decode megabytes for the first few.
    text = data[: 4 * characters_max + 4].decode(errors="replace")
    shown = printable(text).strip()
    is_shortened = len(shown) > characters_max or len(data) > 4 * characters_max + 4
    return shown[: characters_max - 1] + "…" if is_shortened else shown


def confirm(prompt: str, *, yes: bool) -> None:
    """Ask for confirmation. Raises CommandError without a terminal, click.Abort for "no"."""
    if yes:
        return
    _need_terminal(prompt)
    if not click.confirm(prompt, err=True):
        raise click.Abort


def confirm_by_word(prompt: str, word: str, *, yes: bool) -> None:
    """As `confirm`, for what cannot be undone: one has to type the word."""
    if yes:
        return
    _need_terminal(prompt)
    prompt = f"{prompt} Type {word} to continue"
    if click.prompt(prompt, err=True, default="", show_default=False) != word:
        raise click.Abort


def _need_terminal(prompt: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(
            f"confirmation needed, and stdin is not a terminal: {prompt}",
            hint="confirm with -y",
            code=ExitCode.USAGE,
        )


def existing_names(
    kind: str, names: Iterable[str], existing: Container[str], *, if_exists: bool
) -> list[str]:
    """The names that exist. Raises NotFoundError for another one, unless `if_exists`.

    Called before anything is deleted: a typo must not delete the others.
    """
    found = []
    for name in names:
        if name in existing:
            found.append(name)
        elif if_exists:
            say(f"{kind} {name} does not exist")
        else:
            is_deletion = _has_option("if_exists")
            raise NotFoundError(
                f"{kind} {name} does not exist" + "; nothing was deleted" * is_deletion,
                hint=f"list them: moldau {kind} list"
                + " · ignore missing ones: --if-exists" * is_deletion,
            )
    return found


def _has_option(name: str) -> bool:
    """Whether the command that runs has it."""
    context = click.get_current_context(silent=True)
    return context is not None and name in context.params


def format_bytes(count: float) -> str:
    """1536 → 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@contextmanager
def progress_bar(title: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar, if stderr is a terminal."""
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
