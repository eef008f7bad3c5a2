"""Owns the way of decoded values into Arrow's arrays.

Structs are taken apart into columns. Moments are made numbers here: pyarrow asks the time zone of
each for its offset, which takes longer than all the rest of decoding.
"""

import datetime as dt
from typing import Any, Final

from moldau.spark.decode.column_types import Scalar, Struct, Type, arrow_of

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LEAST: Final = dt.datetime.min.replace(tzinfo=dt.UTC)
_MOST: Final = dt.datetime.max.replace(tzinfo=dt.UTC)
_TIMESTAMP: Final = Scalar("timestamp")


def array_of(values: list[Any], kind: Type) -> Any:
    """A pyarrow.Array. Raises ValueError, TypeError or ArithmeticError for what does not fit."""
    import pyarrow as pa

    if kind == _TIMESTAMP:
        return pa.array([_micros(value) for value in values], pa.int64()).cast(arrow_of(kind))
    if not isinstance(kind, Struct):
        return pa.array(values, type=arrow_of(kind))
    columns = [
        array_of([None if value is None else value.get(field.name) for value in values], field.type)
        for field in kind.fields
    ]
    return pa.StructArray.from_arrays(
        columns,
        fields=list(arrow_of(kind)),
        mask=pa.array([value is None for value in values], pa.bool_()),
    )


def _micros(moment: dt.datetime | None) -> int | None:
    """Since 1970; a moment without a zone is UTC."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    if not _LEAST <= moment <= _MOST:
        raise OverflowError("a time outside of the years 1 to 9999")
    passed = moment - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
