"""Responsible for what an audit is told, and for what does not fit together. Asks nobody."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.spec import PipelineSettings

COMPARED: Final = ("key", "value", "timestamp", "timestampType", "headers")
"""What there is of a record beside its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(PipelineSettings):
    """Topics, and either a table of a lake or another topic that should hold the same."""

    kind: ClassVar[str] = "audit"

    topics: tuple[str, ...]
    table: str | None = None
    table_format: str = "delta"
    storage: Mapping[str, str] = field(default_factory=dict)
    """How S3 and catalogs are reached; see `moldau.spark.lake.open_table`."""
    against_topic: str | None = None
    match: tuple[str, ...] = ()
    """What makes a record of the topics the same as one of `against_topic`."""
    match_against: tuple[str, ...] = ()
    """The same for `against_topic`, where it differs."""
    ignored: tuple[str, ...] = ()
    """Columns that are not compared, though they may differ."""
    groups: tuple[str, ...] = ()
    through: str = "now"
    """Up to where all has to be there: the end of the topics now, or what the first `group` has."""
    dead_letters: str | None = None
    lag_max: int | None = None
    value_format: str | None = None
    """json, avro or protobuf: how many values can be decoded is counted."""
    value_schema: str | None = None
    value_message: str | None = None
    """Which message of a Protobuf schema the values are."""
    framing: str = "none"
    registry: str | None = None
    registry_options: Mapping[str, str] = field(default_factory=dict)
    undecodable_max: float = 0.0
    """The share of values that may be so."""

    def check(self) -> None:
        """Raises InvalidArgumentError."""
        if not self.topics:
            raise InvalidArgumentError("an audit needs a topic", hint="name it: --topic TOPIC")
        if (self.table is None) == (self.against_topic is None):
            said = "both are given" if self.table is not None else "neither is given"
            raise InvalidArgumentError(
                f"an audit compares topics with a table or with a topic; {said}",
                hint="--table LOCATION, or --against-topic TOPIC",
            )
        if self.against_topic in self.topics:
            raise InvalidArgumentError(
                f"{self.against_topic} would be compared with itself: see --against-topic"
            )
        if self.table is not None and (self.match or self.match_against):
            raise InvalidArgumentError(
                "rows of a table are known by topic, partition and offset; --match is for "
                "--against-topic"
            )
        if self.match_against and len(self.match_against) != len(self.match):
            raise InvalidArgumentError(
                f"--match is given {len(self.match)} times and --match-against "
                f"{len(self.match_against)} times: they go by pairs"
            )
        for term in (*self.match, *self.match_against):
            expression(term)
        for option, known, given in (
            ("--ignore", COMPARED, self.ignored),
            ("--through", ("now", "group"), (self.through,)),
        ):
            if strange := [name for name in given if name not in known]:
                raise InvalidArgumentError(
                    f"{option} is one of {', '.join(known)}, not {strange[0]!r}"
                )
        if self.through == "group" and not self.groups:
            raise InvalidArgumentError(
                "--through group needs the group that has committed", hint="--group NAME"
            )
        if self.value_format is not None and self.value_schema is None:
            raise InvalidArgumentError(
                f"--decode {self.value_format} needs to know the schema", hint="--schema FILE"
            )
        if not 0 <= self.undecodable_max <= 1:
            raise InvalidArgumentError(
                f"--undecodable-max is a share from 0 to 1, not {self.undecodable_max}"
            )


def expression(term: str) -> str:
    """Spark's SQL for a term of `--match`. Raises InvalidArgumentError."""
    word, _, rest = term.partition(":")
    if term in ("key", "value"):
        return term
    if word == "header" and rest:
        return f"get(reverse(filter(headers, h -> h.key = {_literal(rest)})), 0).value"
    # A path of Spark's has no way to write a quote.
    if word == "field" and rest and "'" not in rest:
        path = "".join(f"['{part}']" for part in rest.split("."))
        return f"get_json_object(CAST(value AS STRING), {_literal('$' + path)})"
    if word == "sql" and rest:
        return rest
    raise InvalidArgumentError(
        f"{term!r} does not say what to match by",
        hint="--match is key, value, header:NAME, field:NAME (without quotes) or sql:EXPRESSION",
    )


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
