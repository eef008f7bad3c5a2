"""The settings of an audit, and their validation. Pure: no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.settings.flag import (
    Flag,
    FramingText,
    RegistryLocation,
    RegistryOptions,
    Storage,
    TableFormatText,
)
from moldau.spark.pipelines.spec import PipelineSettings

COMPARED: Final = ("key", "value", "timestamp", "timestampType", "headers")
"""The columns of a record besides topic, partition and offset."""
THROUGH: Final = ("now", "group")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(PipelineSettings):
    """Topics, and a table or another topic that should hold the same records."""

    kind = "audit"
    summary = "Check that a table or topic has every record of topics exactly once."
    examples = (
        "moldau pipeline run audit --topic orders --table /lake/orders",
        "moldau pipeline run audit --topic orders --table /lake --through group "
        "--group archive-orders",
        "moldau pipeline run audit --topic orders --against-topic orders-copy --match key -o json",
    )
    can_run_continuously = False

    topics: Annotated[
        tuple[str, ...], Flag("Topic whose records must be there.", "TOPIC", "--topic")
    ]
    table: Annotated[
        str | None, Flag("The table to check: a folder, or s3://bucket/prefix.", "LOCATION")
    ] = None
    table_format: TableFormatText = "delta"
    storage: Storage = field(default_factory=dict)
    against_topic: Annotated[
        str | None, Flag("Instead of a table: a topic with a copy of each record.", "TOPIC")
    ] = None
    match: Annotated[
        tuple[str, ...],
        Flag(
            "What identifies a record in two topics: key, value, header:NAME, field:NAME of JSON, "
            "sql:EXPRESSION. [default: key and value]",
            "TERM",
        ),
    ] = ()
    match_against: Annotated[
        tuple[str, ...], Flag("The same for --against-topic, if different.", "TERM")
    ] = ()
    ignored: Annotated[
        tuple[str, ...],
        Flag(
            "Do not compare this column, as the value of a table written without --keep-raw.",
            name="--ignore",
            choices=COMPARED,
        ),
    ] = ()
    groups: Annotated[
        tuple[str, ...],
        Flag("Show the lag of this consumer group; see also --through.", "GROUP", "--group"),
    ] = ()
    through: Annotated[
        str,
        Flag(
            "Check up to the end of the topics, or to the committed offsets of the first group.",
            choices=THROUGH,
        ),
    ] = "now"
    dead_letters: Annotated[
        str | None, Flag("Records in this dead-letter topic are not missing.", "TOPIC")
    ] = None
    lag_max: Annotated[
        int | None, Flag("Fail if a group has more lag in a partition.", "N", least=0)
    ] = None
    value_format: Annotated[
        str | None,
        Flag(
            "Count values that cannot be decoded with --schema.",
            name="--decode",
            choices=("json", "avro", "protobuf"),
        ),
    ] = None
    value_schema: Annotated[
        str | None, Flag("For --decode: a file, or the schema.", "FILE|TEXT", "--schema")
    ] = None
    value_message: Annotated[
        str | None, Flag("Message type of a Protobuf schema.", "NAME", "--message")
    ] = None
    framing: FramingText = "none"
    registry: RegistryLocation = None
    registry_options: RegistryOptions = field(default_factory=dict)
    undecodable_max: Annotated[float, Flag("Accepted share of undecodable values.", "SHARE")] = 0.0

    def checks(self) -> Iterator[tuple[bool, str, str]]:
        yield not self.topics, "an audit needs a topic", "name it: --topic TOPIC"
        is_table = self.table is not None
        count = "both" if is_table else "none"
        error = f"an audit needs one of --table and --against-topic; {count} given"
        is_both = is_table == (self.against_topic is not None)
        yield is_both, error, "--table LOCATION, or --against-topic TOPIC"
        error = f"{self.against_topic} would be compared with itself: see --against-topic"
        yield self.against_topic in self.topics, error, ""
        is_matched = bool(self.match or self.match_against)
        error = (
            "--match needs --against-topic: rows of a table are matched by topic, partition and "
            "offset"
        )
        yield is_table and is_matched, error, ""
        error = (
            "--match and --match-against are pairs, but are given "
            f"{len(self.match)} and {len(self.match_against)} times"
        )
        is_pairs = len(self.match_against) in (0, len(self.match))
        yield not is_pairs, error, ""
        for term in (*self.match, *self.match_against):
            expression(term)
        for option, known, given in (
            ("--ignore", COMPARED, self.ignored),
            ("--through", THROUGH, (self.through,)),
        ):
            for name in given:
                error = f"{option} must be one of {', '.join(known)}, not {name!r}"
                yield name not in known, error, ""
        is_open = self.through == "group" and not self.groups
        yield is_open, "--through group needs a group", "--group NAME"
        is_lacking = self.value_format is not None and self.value_schema is None
        yield is_lacking, f"--decode {self.value_format} needs a schema", "--schema FILE"
        error = f"--undecodable-max must be from 0 to 1, not {self.undecodable_max}"
        yield not 0 <= self.undecodable_max <= 1, error, ""


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
