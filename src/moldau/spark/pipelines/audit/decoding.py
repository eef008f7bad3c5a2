"""Owns the count of values that cannot be decoded by a schema: drift of what producers write."""

from typing import TYPE_CHECKING

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode import ERROR_COLUMN, Decoder, apply, decoder
from moldau.spark.pipelines.audit.report import Undecodable
from moldau.spark.pipelines.audit.settings import AuditSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def made_decoder(settings: AuditSettings) -> Decoder | None:
    """Raises InvalidArgumentError for a schema that is none."""
    if settings.value_format is None:
        return None
    if settings.value_schema is None:
        raise InvalidArgumentError(
            f"--decode {settings.value_format} needs to know the schema", hint="--schema FILE"
        )
    return decoder(
        settings.value_format,
        settings.value_schema,
        message=settings.value_message or "",
        framing=settings.framing,
        registry=settings.registry,
        registry_options=settings.registry_options,
    )


def count_undecodable(rows: "DataFrame", settings: AuditSettings, found: Decoder) -> Undecodable:
    """Reads the values of all rows. A null value is no error."""
    from pyspark.sql import functions as F  # noqa: N812

    told = apply(rows.select("topic", "partition", "offset", "value"), found)
    error = F.col(ERROR_COLUMN)
    where = F.concat_ws("", "topic", F.lit("-"), "partition", F.lit(" offset "), "offset")
    said = F.when(error.isNotNull(), F.concat(where, F.lit(": "), error))
    row = told.agg(
        F.count(F.lit(1)).alias("values"),
        F.count(error).alias("undecodable"),
        F.min(said).alias("example"),
    ).collect()[0]
    return Undecodable(
        format=str(found.format),
        values=row["values"],
        undecodable=row["undecodable"],
        share_max=settings.undecodable_max,
        example=row["example"] or "",
    )
