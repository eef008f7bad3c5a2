"""A kind of pipelines that only counts: for tests of what all kinds share, without Spark."""

import time
from dataclasses import dataclass
from typing import Annotated, ClassVar

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.settings.flag import Flag, Topics
from moldau.spark.pipelines.spec import (
    Outcome,
    PipelineContext,
    PipelineSettings,
    Plan,
    Progress,
    Step,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountSettings(PipelineSettings):
    kind: ClassVar[str] = "count"
    summary: ClassVar[str] = "Count, and do nothing else."
    examples: ClassVar[tuple[str, ...]] = (
        "moldau pipeline run count --topic clicks",
        "moldau pipeline run count --topic clicks --topic orders --rows 20",
        "moldau pipeline run count --topic clicks --ill",
    )
    needs_brokers: ClassVar[bool] = False

    topics: Topics
    rows: Annotated[int, Flag("How far.", "N")] = 10
    fail: Annotated[str, Flag("Fail like this.")] = ""
    """refused: by an error of ours; defect: by one of nobody's; late: after the first rows; deaf:
    it does not stop when it is told to."""
    is_ill: Annotated[bool, Flag("Say that something is not well.", name="--ill")] = False


def plan(settings: CountSettings) -> Plan:
    return Plan(
        reads=tuple(f"topic {topic}" for topic in settings.topics),
        writes=("nowhere",),
        steps=(Step(what="count", rows=settings.rows),),
        warnings=("it only counts",),
    )


def run(settings: CountSettings, context: PipelineContext) -> Outcome:
    if settings.fail == "refused":
        raise InvalidArgumentError("it cannot count that", hint="use --rows")
    if settings.fail == "defect":
        raise ZeroDivisionError("one by none")
    done = 0
    while not context.stopping and (settings.continuous or done < settings.rows):
        done += 1
        context.report(
            Progress(
                batch=done,
                rows=done,
                rows_total=None if settings.continuous else settings.rows,
                rows_per_second=100.0,
                lag=7,
                batch_seconds=0.01,
            )
        )
        if done == 3:
            context.dead_letters(2)
        if done == 5 and settings.fail == "late":
            raise InvalidArgumentError("it cannot go on", hint="count less")
        while settings.fail == "deaf":
            time.sleep(0.01)
        time.sleep(0.01)
    return Outcome(
        ok=not settings.is_ill,
        summary=f"counted {'to the end' if done == settings.rows else 'for a while'}",
        rows=done,
        dead_letters=2,
    )
