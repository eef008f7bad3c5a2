"""Owns a project of Spark Declarative Pipelines as a kind of pipeline, so that it is run, watched,
logged and listed as the others are. What a project is, `moldau.spark.pipelines.project` knows."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from moldau.spark.pipelines import project
from moldau.spark.pipelines.failures import PipelineError
from moldau.spark.pipelines.spec import Context, Outcome, Plan, Progress, Settings, Step

_LINES_KEPT: Final = 2000
_STAMP: Final = re.compile(r"^\d{4}-\d\d-\d\d[T ][\d:.,]+Z?\s*:?\s*")
_TAKEN: Final = re.compile(r"^(?:Importing|Registering SQL file) (?P<path>.+?)\.*$")
_ERROR: Final = re.compile(r"^(?:error: |[\w.]*(?:Error|Exception)\b:? )(?P<text>.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSettings(Settings):
    """Which one, and whether from the beginning."""

    kind: ClassVar[str] = "project"

    folder: str
    full_refresh: bool = False
    """Forget what its tables hold and make them anew."""


SETTINGS = ProjectSettings


def plan(settings: Settings) -> Plan:
    """Have Spark check the project: no message is read or written. This one does start Spark."""
    told = _checked(settings)
    lines: list[str] = []
    code = project.dry_run(Path(told.folder), master=told.master, on_line=lines.append)
    if code:
        raise failure(told.folder, code, lines)
    return Plan(
        reads=(str(project.spec_of(Path(told.folder))),),
        writes=(f"the tables and sinks of {Path(told.folder).absolute().name}",),
        steps=tuple(Step(what=text) for text in steps_of(told.folder, lines)),
    )


def steps_of(folder: str, lines: Sequence[str]) -> list[str]:
    """What Spark's program took of the project, of all that it and Java said."""
    root = f"{Path(folder).absolute()}/"
    # The program's own lines begin with a time; Java's do not, or with another form of it.
    said = [_STAMP.sub("", line).strip() for line in lines if _STAMP.match(line)]
    taken = [found["path"].removeprefix(root) for line in said if (found := _TAKEN.match(line))]
    if not taken:
        return said
    return [
        *(f"take what {path} declares" for path in sorted(taken)),
        "bring it up to date, in the order that Spark finds; Spark has checked it",
    ]


def run(settings: Settings, context: Context) -> Outcome:
    """Run it once, until it has done what is there."""
    told = _checked(settings)
    lines: list[str] = []

    def on_line(line: str) -> None:
        # To the log, and as a word on what is going on.
        print(line, flush=True, file=sys.stderr)
        del lines[:-_LINES_KEPT]
        lines.append(line)
        context.report(Progress(note=_STAMP.sub("", line).strip()[:100]))

    code = project.run(
        Path(told.folder),
        full_refresh=told.full_refresh,
        master=told.master,
        on_line=on_line,
        is_stopping=lambda: context.stopping,
    )
    name = Path(told.folder).absolute().name
    if context.stopping:
        return Outcome(summary=f"project {name} was stopped")
    if code:
        raise failure(told.folder, code, lines)
    return Outcome(summary=f"project {name} is done")


def failure(folder: str, code: int, lines: list[str]) -> PipelineError:
    """What went wrong, as far as Spark's words say it."""
    said = [_STAMP.sub("", line).strip() for line in lines if line.strip()]
    hint = next((line[5:].strip() for line in reversed(said) if line.startswith("hint:")), "")
    errors = [line for line in said if _ERROR.match(line)]
    why = (errors or said or ["without a word"])[-1].removeprefix("error: ")
    name = Path(folder).absolute().name
    return PipelineError(f"project {name} ended with code {code}: {why}", hint=hint)


def _checked(settings: Settings) -> ProjectSettings:
    if not isinstance(settings, ProjectSettings):
        raise TypeError(f"settings of kind {settings.kind!r} are none of a project")
    return settings
