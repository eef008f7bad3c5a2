"""Owns the plan of an archive: what is there to be read, and what the table already has."""

from moldau.spark.lake.table import Destination, TableFormat
from moldau.spark.pipelines.archive.decoding import made_decoder
from moldau.spark.pipelines.archive.remembered import recall
from moldau.spark.pipelines.archive.running import open_tables
from moldau.spark.pipelines.archive.settings import ArchiveSettings
from moldau.spark.pipelines.archive.starts import bounds
from moldau.spark.pipelines.spec import Plan, Step


def plan_of(settings: ArchiveSettings) -> Plan:
    """Asks brokers and tables; changes nothing. Raises ClientError."""
    from moldau.spark.lake import schemas
    from moldau.spark.pipelines.archive.source import table_schema

    tables = open_tables(settings)
    known = recall(settings, tables)
    decoder = made_decoder(settings, keep=False)
    for place, table in tables.items():
        wanted = table_schema(decoder, keep_raw=settings.keep_raw, changes=settings.changes())
        schemas.merged(table.schema(), wanted, table.partition_columns, place)
    starts, ends = bounds(settings, known)
    steps = []
    for topic in sorted({place.topic for place in ends}):
        rows = sum(
            max(0, end - starts[place]) for place, end in ends.items() if place.topic == topic
        )
        steps.append(Step(what=f"read {topic}", rows=rows))
    if decoder is not None:
        bad = settings.dead_letters_to()
        steps.append(Step(what=f"decode values as {settings.decode}, bad ones to {bad}"))
    steps += [_table_step(settings, place, table) for place, table in tables.items()]
    return Plan(
        reads=settings.topics,
        writes=tuple(tables) + ((settings.dead_letters_to(),) if settings.has_dead_letters else ()),
        steps=tuple(steps),
        warnings=_warnings(settings),
    )


def _table_step(settings: ArchiveSettings, place: str, table: Destination) -> Step:
    if table.format is TableFormat.PARQUET:
        return Step(what=f"write Parquet files to {place}")
    begun = "create" if table.schema() is None else settings.mode
    return Step(what=f"{begun} the {table.format} table {place}")


def _warnings(settings: ArchiveSettings) -> tuple[str, ...]:
    if not settings.has_dead_letters and settings.dead_letter_topic:
        return ("values are not decoded, so nothing goes to the dead-letter topic",)
    return ()
