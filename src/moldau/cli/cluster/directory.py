"""The directory of a cluster on this machine, as an option of commands, and its brokers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from moldau.cli.options import completions
from moldau.supervisor.errors import SupervisorError
from moldau.supervisor.state import DEFAULT_DIR, load_state

_F = TypeVar("_F", bound=Callable[..., Any])


def dir_option(function: _F) -> _F:
    return click.option(
        "--data-dir",
        "data_dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=DEFAULT_DIR,
        show_default=True,
        metavar="DIR",
        is_eager=True,
        help="The cluster's directory.",
    )(function)


def complete_members(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    try:
        state = load_state(Path(ctx.params.get("data_dir") or DEFAULT_DIR))
    except SupervisorError:
        return []
    members = state.brokers if state else []
    names = {str(member.id): f"{member.kafka}, {member.state}" for member in members}
    return completions(incomplete, names)
