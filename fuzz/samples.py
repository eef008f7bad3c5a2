"""Plausible messages of every API and version, made from the tables of fields, for seeds."""

from typing import Any, Final, TypeVar

from moldau.model.ids import Offset, TimestampMs
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch
from moldau.wire.fields import Field
from moldau.wire.schema import Message

M = TypeVar("M", bound=Message)

_TIME: Final = TimestampMs(1_790_000_000_000)
_NUMBERS: Final = {"acks": -1, "replication_factor": 1, "num_partitions": 1, "throttle_time_ms": 0}
_TEXTS: Final = {"protocol_type": "consumer", "mechanism": "PLAIN"}


def records(count: int = 2) -> list[Record]:
    return [
        Record(Offset(n), TimestampMs(_TIME + n), b"key-%d" % n, b"value-%d" % n, [("h", b"1")])
        for n in range(count)
    ]


def batch(codec: Codec = Codec.NONE, count: int = 2, **options: Any) -> bytes:
    """As a producer sends it."""
    return build_batch(records(count), codec=codec, **options)


def message(cls: type[M], version: int) -> M:
    """One of each: every array has one element, every text a word."""
    made: M = _struct(cls, version)
    return made


def _struct(cls: Any, version: int) -> Any:
    values = {}
    for name, field in cls.FIELDS.items():
        if version in field.versions:
            values[name] = _value(field, name, version)
        else:
            absent = field.absent_value
            values[name] = [] if absent == () else absent
    return cls(**values)


def _value(field: Field, name: str, version: int) -> Any:
    if field.kind == "array":
        if isinstance(field.element, str):
            return [_primitive(field.element, name)]
        return [_struct(field.element, version)]
    if field.kind == "struct":
        return _struct(field.element, version)
    return _primitive(field.kind, name)


def _primitive(kind: str, name: str) -> Any:
    match kind:
        case "bool":
            return False
        case "f64":
            return 1.5
        case "uuid":
            return bytes(range(16))
        case "string":
            return _TEXTS.get(name, "a")
        case "bytes":
            return b"\x00\x01"
        case "records":
            return batch(count=1)
        case _:
            return _NUMBERS.get(name, 0)
