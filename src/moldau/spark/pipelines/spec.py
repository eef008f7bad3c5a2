"""Responsible for what a pipeline is to others: its kind, settings, plan, progress and outcome.

Each kind of `KINDS` is a package `moldau.spark.pipelines.<kind>` with

    SETTINGS: type[Settings]                        # a frozen dataclass with fields of its own
    def plan(settings) -> Plan                      # no Spark: looks at the broker and the lake
    def run(settings, context: Context) -> Outcome  # until all is done, or until told to stop

and a module `moldau.cli.pipeline.<kind>` with its command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from moldau.client.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from moldau.spark.lake.storage import Folder

KINDS: Final = ("archive", "compact", "replay", "aggregate", "audit")


def load(kind: object) -> ModuleType:
    """The package of a kind, which is not imported before. Raises InvalidArgumentError."""
    if kind not in KINDS:
        raise InvalidArgumentError(
            f"there is no kind of pipeline {kind!r}", hint=f"kind is one of {', '.join(KINDS)}"
        )
    return import_module(f"moldau.spark.pipelines.{kind}")


class PipelineState(StrEnum):
    """Where a pipeline stands."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """What every pipeline is told. Kinds add fields: text, numbers, flags, None, tuples of text.

    Secrets stand in mappings, under names that say so: `declared.without_secrets` hides those.
    """

    kind: ClassVar[str] = ""

    name: str
    """Unique in the cluster; also the name of the consumer group that shows its lag."""
    bootstrap: str
    home: str
    """The folder with its checkpoint; see `moldau.spark.pipelines.home`."""
    master: str = "local[*]"
    continuous: bool = False
    """Goes on until it is stopped; else it ends with what is there when it starts."""
    trigger_seconds: float = 5.0
    """Between two batches of a continuous run."""
    options: Mapping[str, str] = field(default_factory=dict)
    """More options for the source `moldau`, such as security ones or limits."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark: they go before those that `moldau.spark.session` makes."""

    @property
    def checkpoint(self) -> "Folder":
        from moldau.spark.pipelines.home import Home

        return Home(self.home).checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing a pipeline would do, in words, and how much of it there is."""

    what: str
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would run. Nothing was changed to find out."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    steps: tuple[Step, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a pipeline is. Counts are since it was started."""

    batch: int | None = None
    rows: int = 0
    rows_total: int | None = None
    """As far as it is known how many there will be: what a bar is drawn by."""
    rows_per_second: float | None = None
    lag: int | None = None
    """Records that are in the topics and not yet through."""
    batch_seconds: float | None = None
    dead_letters: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it ended. `ok` is the exit code's: False is 1, with a report and no error."""

    ok: bool = True
    summary: str = ""
    rows: int = 0
    dead_letters: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    """Plain values, for --json and for the broker."""


class PipelineContext(Protocol):
    """What a running pipeline may use; see `moldau.spark.pipelines.runner`."""

    @property
    def spark(self) -> "SparkSession":
        """Made when it is first asked for."""

    @property
    def stopping(self) -> bool:
        """Somebody wants it to end, in order, after the batch at hand."""

    def report(self, progress: Progress) -> None:
        """Cheap; shown and published now and then."""

    def dead_letters(self, count: int) -> None:
        """So many rows more went to the dead-letter topic."""

    def watch(self, query: "StreamingQuery") -> None:
        """Report a query's progress until it ends, or stop it when told to. Raises its error."""
