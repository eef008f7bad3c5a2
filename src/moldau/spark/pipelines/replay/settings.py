"""Owns what a replay is told: from where, which records, and to which topic."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.spec import Settings

BATCH_ROWS_DEFAULT: Final = 500_000
"""A batch is one set of transactions: large enough to be cheap, and over long before they end."""
_CHANGEABLE: Final = frozenset(
    {
        "home",
        "master",
        "continuous",
        "trigger_seconds",
        "options",
        "conf",
        "create",
        "bootstrap",
        "batch_rows",
        "storage",
    }
)
"""Fields that may be others when a replay goes on: they do not say what is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings(Settings):
    """One of `topics` and `table` is the source. All that selects records holds together."""

    kind: ClassVar[str] = "replay"

    target: str
    topics: tuple[str, ...] = ()
    table: str | None = None
    """The location of a table that `archive` wrote: a folder, or s3://…"""
    table_format: str = "delta"
    storage: Mapping[str, str] = field(default_factory=dict)
    """How the storage of the table is reached."""
    from_time: str | None = None
    """The first moment: ISO 8601, milliseconds since 1970, or ago as in -2h."""
    to_time: str | None = None
    """The first moment that is not sent any more."""
    times_rise: bool = False
    """Timestamps rise with offsets, so that nothing is to be found behind the first late one."""
    offsets: tuple[str, ...] = ()
    """[TOPIC/]PARTITION:FIRST-LAST, both included; without one of them to the end there."""
    keys: tuple[str, ...] = ()
    key_file: str | None = None
    """A key per line."""
    key_encoding: str = "text"
    create: bool = False
    keep_partitions: bool | None = None
    """None: where the target has enough of them."""
    origin_headers: bool = False
    batch_rows: int = BATCH_ROWS_DEFAULT

    def check(self) -> None:
        """Raises InvalidArgumentError for what contradicts itself."""
        if bool(self.topics) == bool(self.table):
            raise InvalidArgumentError(
                "a replay reads from topics or from a table: name one of them",
                hint="--topic NAME, or --table LOCATION",
            )
        if not self.target:
            raise InvalidArgumentError(
                "a replay needs a topic to write to", hint="name it: --to TOPIC"
            )
        if self.batch_rows < 1:
            raise InvalidArgumentError(f"--batch-rows is at least 1, not {self.batch_rows}")

    def asked(self) -> dict[str, Any]:
        """What says which records are sent where: it must not change while a replay goes on."""
        found = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in _CHANGEABLE
        }
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in found.items()
        }
