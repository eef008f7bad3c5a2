"""Owns the command line of the kind `project`: a project of Spark Declarative Pipelines."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from moldau.cli.pipeline_common import Common

if TYPE_CHECKING:
    from moldau.spark.pipelines.spec import Settings

SUMMARY: Final = "Bring the tables and topics of a project of your own up to date."

EXAMPLES: Final = (
    "moldau pipeline run project ./my-project",
    "moldau pipeline run project ./my-project --full-refresh",
    "moldau pipeline run project ./my-project --master sc://spark.example",
)

CONTINUOUS: Final = False

OPTIONS: Final[tuple[Callable[..., Any], ...]] = (
    click.argument("folder", type=click.Path(file_okay=False)),
    click.option(
        "--full-refresh", is_flag=True, help="Make its tables anew, from the first record on."
    ),
)


def settings(common: Common, **values: Any) -> "Settings":
    """What the command line asks for. Raises InvalidArgumentError if that is no project."""
    from pathlib import Path

    from moldau.spark.pipelines.project import spec_of
    from moldau.spark.pipelines.project_kind import ProjectSettings

    folder = Path(values.pop("folder")).absolute()
    spec_of(folder)
    return ProjectSettings(**common.fields(), folder=str(folder), **values)
