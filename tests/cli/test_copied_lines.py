"""Commands that the console offers to copy: moldau reads each of them."""

import shlex
from pathlib import Path

import click
import pytest

from moldau.cli.main import cli
from moldau.cli.messages.filters import parse_filter

pytestmark = pytest.mark.inprocess

# Written by console/tests/commands.test.ts, from what pages copy.
LINES = (
    (Path(__file__).parents[2] / "console/tests/moldau_lines.txt").read_text().strip().splitlines()
)


def parsed(line: str) -> click.Context:
    """The context of the command; raises UsageError."""
    program, *words = shlex.split(line)
    assert program == "moldau"
    command: click.Command = cli
    context = cli.make_context(program, words)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize("line", LINES)
def test_moldau_reads_what_the_console_copies(line: str) -> None:
    context = parsed(line)
    if condition := context.params.get("filter"):
        parse_filter(condition)


def test_a_wrong_line_is_noticed() -> None:
    with pytest.raises(click.UsageError):
        parsed("moldau queue stats jobs --group resizers")


def test_names_that_begin_like_options_are_names() -> None:
    assert parsed("moldau topic delete -b b1:9192 -- -f").params["topics"] == ("-f",)
    assert parsed("moldau produce orders -m -v -b b1:9192").params["messages"] == ("-v",)
