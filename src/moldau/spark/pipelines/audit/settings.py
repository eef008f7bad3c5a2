"""The settings of an audit, and their validation. Pure: no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.spec import PipelineSettings

COMPARED: Final = ("key", "value", "timestamp", "timestampType", "headers")
"""The columns of a record besides topic, partition and offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(PipelineSettings):
    """Topics, and a table or another topic that should hold the same records."""

    kind: ClassVar[str] = "audit"

    topics: tuple[str, ...]
    table: str | None = None
    table_format: str = "delta"
    storage: Mapping[str, str] = field(default_factory=dict)
    """Options of storage and catalog; see `moldau.spark.lake.open_table`."""
    against_topic: str | None = None
    match: tuple[str, ...] = ()
    """The terms by which records of the topics and of `against_topic` are equal."""
    match_against: tuple[str, ...] = ()
    """The terms for `against_topic`, if they differ."""
    ignored: tuple[str, ...] = ()
    """Columns that are not compared."""
    groups: tuple[str, ...] = ()
    through: str = "now"
    """Records are required up to `now`, or up to the offsets of the first `group`."""
    dead_letters: str | None = None
    lag_max: int | None = None
    value_format: str | None = None
    """json, avro or protobuf: undecodable values are counted."""
    value_schema: str | None = None
    value_message: str | None = None
    """The Protobuf message type of the values."""
    framing: str = "none"
    registry: str | None = None
    registry_options: Mapping[str, str] = field(default_factory=dict)
    undecodable_max: float = 0.0
    """The allowed share of undecodable values."""

    def check(self) -> None:
        """Raises InvalidArgumentError."""
        if not self.topics:
            raise InvalidArgumentError("an audit needs a topic", hint="name it: --topic TOPIC")
        if (self.table is None) == (self.against_topic is None):
            count = "both" if self.table is not None else "none"
            raise InvalidArgumentError(
                f"an audit needs one of --table and --against-topic; {count} given",
                hint="--table LOCATION, or --against-topic TOPIC",
            )
        if self.against_topic in self.topics:
            raise InvalidArgumentError(
                f"{self.against_topic} would be compared with itself: see --against-topic"
            )
        if self.table is not None and (self.match or self.match_against):
            raise InvalidArgumentError(
                "--match needs --against-topic: rows of a table are matched by topic, partition "
                "and offset"
            )
        if self.match_against and len(self.match_against) != len(self.match):
            raise InvalidArgumentError(
                "--match and --match-against are pairs, but are given "
                f"{len(self.match)} and {len(self.match_against)} times"
            )
        for term in (*self.match, *self.match_against):
            expression(term)
        for option, known, given in (
            ("--ignore", COMPARED, self.ignored),
            ("--through", ("now", "group"), (self.through,)),
        ):
            if unknown := [name for name in given if name not in known]:
                raise InvalidArgumentError(
                    f"{option} must be one of {', '.join(known)}, not {unknown[0]!r}"
                )
        if self.through == "group" and not self.groups:
            raise InvalidArgumentError("--through group needs a group", hint="--group NAME")
        if self.value_format is not None and self.value_schema is None:
            raise InvalidArgumentError(
                f"--decode {self.value_format} needs a schema", hint="--schema FILE"
            )
        if not 0 <= self.undecodable_max <= 1:
            raise InvalidArgumentError(
                f"--undecodable-max must be from 0 to 1, not {self.undecodable_max}"
            )


def expression(term: str) -> str:
    """Spark's SQL for a term of `--match`. Raises InvalidArgumentError."""
    word, _, rest = term.partition(":")
    if term in ("key", "value"):
        return term
    if word == "header" and rest:
        return f"get(reverse(filter(headers, h -> h.key = {_literal(rest)})), 0).value"
    # JSON paths of Spark cannot contain a quote.
    if word == "field" and rest and "'" not in rest:
        path = "".join(f"['{part}']" for part in rest.split("."))
        return f"get_json_object(CAST(value AS STRING), {_literal('$' + path)})"
    if word == "sql" and rest:
        return rest
    raise InvalidArgumentError(
        f"{term!r} is not a valid term of --match",
        hint="use key, value, header:NAME, field:NAME (without quotes) or sql:EXPRESSION",
    )


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
