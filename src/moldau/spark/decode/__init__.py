"""Decodes values: JSON, Avro, Protobuf. Bad rows keep their bytes and get an error.

    events = decode.apply(table, decode.decoder("json", "id bigint NOT NULL, name string"))
    good, bad = decode.split(events)
    decode.dead_letters(bad, topic="orders.dead").write.format("moldau")…

Only functions with a DataFrame need a Spark session; decoders work without one.
"""

from moldau.spark.decode.arrow_types import spark_json
from moldau.spark.decode.dataframes import (
    ERROR_COLUMN,
    RAW_COLUMN,
    apply,
    dead_letters,
    infer,
    split,
)
from moldau.spark.decode.decoder import RAW, Decoded, Decoder, decoder
from moldau.spark.decode.json_values import infer_json
from moldau.spark.formats import Format, Framing

__all__ = ["ERROR_COLUMN", "RAW", "RAW_COLUMN", "Decoded", "Decoder", "Format", "Framing"]
__all__ += ["apply", "dead_letters", "decoder", "infer", "infer_json", "spark_json", "split"]
