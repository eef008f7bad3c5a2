"""The formats of values, and the headers before them. Imports nothing, so that settings can."""

from enum import StrEnum


class Format(StrEnum):
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Framing(StrEnum):
    NONE = "none"
    CONFLUENT = "confluent"
    SINGLE_OBJECT = "single-object"
