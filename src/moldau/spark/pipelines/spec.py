"""What all kinds of pipelines have: settings, plan, progress, outcome and the context they run in.

`kinds.py` lists the kinds, and what each must provide.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.settings.flag import Flag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from moldau.client.security import Security
    from moldau.spark.lake.storage import Folder


class PipelineState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The settings of every kind. Kinds add fields: text, numbers, flags, None, tuples of text.

    The command line derives an option from each field that a kind adds, by its `Flag`. Secrets are
    values in mappings, under names that say so: `secrets.without_secrets` masks them.
    """

    kind: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    """One sentence, for help."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Command lines: moldau pipeline run KIND …; help shows the first three."""
    can_run_continuously: ClassVar[bool] = True
    needs_brokers: ClassVar[bool] = True
    """Fail early if none responds."""

    name: str
    """Unique in the cluster; also the name of the consumer group that shows its lag."""
    bootstrap: str
    home: str
    """The folder with its checkpoint; see `moldau.spark.pipelines.home`."""
    master: Annotated[str, Flag("Spark master: local[N], spark://…, k8s://…, yarn.", "URL")] = (
        "local[*]"
    )
    continuous: bool = False
    """Runs until it is stopped; otherwise it ends with the records there were at its start."""
    trigger_seconds: float = 5.0
    """Between two batches of a continuous run."""
    options: Annotated[
        Mapping[str, str],
        Flag("Option of the Spark source, as maxOffsetsPerTrigger=100000", name="--option"),
    ] = field(default_factory=dict, repr=False)
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Spark settings: they override the defaults of `moldau.spark.session`."""

    def check(self) -> None:
        """Raises InvalidArgumentError, which names the option to change."""
        for is_wrong, what, hint in self.checks():
            if is_wrong:
                raise InvalidArgumentError(what, hint=hint)

    def checks(self) -> Iterator[tuple[bool, str, str]]:
        """The checks in order, without I/O: whether it failed, the error, and a hint."""
        yield from ()

    @property
    def security(self) -> "Security":
        """TLS and SASL of its own clients: the options of the source, kafka.security.… and so on.

        Raises InvalidArgumentError.
        """
        from moldau.spark.options import Options

        return Options(self.options).security()

    @property
    def checkpoint(self) -> "Folder":
        from moldau.spark.pipelines.home import Home

        return Home(self.home).checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a plan, and how much data it processes."""

    what: str
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a pipeline would do. Planning changes nothing."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    steps: tuple[Step, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a pipeline. Counts are since its start."""

    batch: int | None = None
    rows: int = 0
    rows_total: int | None = None
    """If known; for the progress bar."""
    rows_per_second: float | None = None
    lag: int | None = None
    """Records in the topics that are not yet processed."""
    batch_seconds: float | None = None
    dead_letters: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run. `ok=False` means exit code 1, with a report instead of an error."""

    ok: bool = True
    summary: str = ""
    rows: int = 0
    dead_letters: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    """Plain values, for -o json and for the broker."""


class PipelineContext(Protocol):
    """What a running pipeline can use; see `moldau.spark.pipelines.runner`."""

    @property
    def spark(self) -> "SparkSession":
        """Created on first use."""

    @property
    def stopping(self) -> bool:
        """Whether the pipeline should end after the current batch."""

    def report(self, progress: Progress) -> None:
        """Cheap: shown and published at intervals."""

    def dead_letters(self, count: int) -> None:
        """Adds to the number of rows sent to the dead-letter topic."""

    def watch(self, query: "StreamingQuery") -> None:
        """Reports a query's progress until it ends; stops it on request. Raises its error."""
