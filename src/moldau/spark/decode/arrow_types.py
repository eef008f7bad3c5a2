"""The types of decoded values: pyarrow types, converted from and to Spark's.

A row without a field that is not nullable is bad. In tables all columns are nullable, since a
tombstone has no fields: see `columns_of`.
"""

import datetime as dt
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from subprocess import DEVNULL
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from moldau.client.errors import InvalidArgumentError
from moldau.spark.java import JavaError, find_java

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
MAP_OF_STRINGS: Final = pa.map_(pa.string(), pa.string())
_QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LEAST: Final = dt.datetime.min.replace(tzinfo=dt.UTC)
_MOST: Final = dt.datetime.max.replace(tzinfo=dt.UTC)


def struct_of(fields: Iterable[Any], where: str = "") -> Any:
    """A struct with checked names, which Spark compares case-insensitively."""
    found = list(fields)
    if not found:
        raise InvalidArgumentError(f"the schema has no fields {where}".rstrip())
    seen: set[str] = set()
    for field in found:
        if not field.name or field.name.lower() in seen:
            problem = f"the field {field.name} twice" if field.name else "a field without a name"
            raise InvalidArgumentError(
                f"the schema has {problem} {where}".rstrip(),
                hint="field names are case-insensitive in Spark",
            )
        seen.add(field.name.lower())
    return pa.struct(found)


def list_of(element: Any, *, nullable: bool = True) -> Any:
    return pa.list_(pa.field("element", element, nullable))


def map_of(key: Any, value: Any, *, nullable: bool = True) -> Any:
    return pa.map_(key, pa.field("value", value, nullable))


def columns_of(kind: Any) -> Any:
    """The type of the column: the same, but all nullable."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, columns_of(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return list_of(columns_of(kind.value_type))
    if pa.types.is_map(kind):
        return map_of(kind.key_type, columns_of(kind.item_type))
    return kind


def with_new_fields(known: Any, seen: Any) -> Any:
    """`known` with the additional fields of `seen`; common fields stay as they are."""
    if pa.types.is_struct(known) and pa.types.is_struct(seen):
        theirs = {field.name.lower(): field for field in seen}
        fields = []
        for field in known:
            other = theirs.pop(field.name.lower(), field)
            fields.append(field.with_type(with_new_fields(field.type, other.type)))
        return pa.struct([*fields, *theirs.values()])
    if pa.types.is_list(known) and pa.types.is_list(seen):
        element = with_new_fields(known.value_type, seen.value_type)
        return list_of(element, nullable=known.value_field.nullable)
    if pa.types.is_map(known) and pa.types.is_map(seen):
        item = with_new_fields(known.item_type, seen.item_type)
        return map_of(known.key_type, item, nullable=known.item_field.nullable)
    return known


# -- Spark's types


def spark_json(struct: Any) -> str:
    """Spark's JSON of a schema, which `decoder` reads without Java."""
    return str(from_arrow_type(struct, prefer_timestamp_ntz=True).json())


def from_spark(kind: Any) -> Any:
    """Raises InvalidArgumentError for types that the formats do not have, such as intervals."""
    match kind:
        case t.StructType():
            return struct_of(
                pa.field(field.name, from_spark(field.dataType), field.nullable) for field in kind
            )
        case t.ArrayType():
            return list_of(from_spark(kind.elementType), nullable=kind.containsNull)
        case t.MapType():
            value = from_spark(kind.valueType)
            return map_of(from_spark(kind.keyType), value, nullable=kind.valueContainsNull)
        case t.CharType() | t.VarcharType():
            return pa.string()
        case t.DecimalType() if not 0 <= kind.scale <= kind.precision <= 38:
            pass
        case t.NumericType() | t.BooleanType() | t.BinaryType() | t.DateType():
            return to_arrow_type(kind)
        case t.TimestampType():
            return TIMESTAMP
        case t.TimestampNTZType():
            return pa.timestamp("us")
        case t.StringType() if kind == t.StringType():  # Without a collation.
            return pa.string()
    raise InvalidArgumentError(
        f"the schema has a field of type {kind.simpleString()}, which is not supported",
        hint="declare it as string, and cast it afterwards",
    )


def from_spark_json(found: Mapping[str, Any]) -> Any:
    """From the result of `StructType.jsonValue()`."""
    try:
        return from_spark(t.StructType.fromJson(dict(found)))
    except (PySparkException, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise InvalidArgumentError(f"the schema is not valid Spark JSON: {error!r}") from None


@lru_cache(maxsize=64)
def from_ddl(text: str) -> Any:
    """Uses Spark's parser: `a int, b struct<c: string NOT NULL>`. Raises JavaError without Java."""
    hint = "as in: id bigint NOT NULL, name string, tags array<string>"
    try:
        found = _parsed(text)
    except PySparkException as error:
        reason = re.search(r"\[[A-Z_.]+\] (.+?)(?: SQLSTATE.*)?$", str(error), re.MULTILINE)
        raise InvalidArgumentError(
            f"Spark cannot read the schema as DDL: {reason[1] if reason else error} ({text})",
            hint=hint,
        ) from None
    if not isinstance(found, t.StructType):
        raise InvalidArgumentError(f"the schema has no fields: {text}", hint=hint)
    return from_spark(found)


def _parsed(text: str) -> Any:
    try:
        return t.DataType.fromDDL(text)
    except PySparkRuntimeError:
        pass  # There is no session.
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has started Java already.
        SparkContext._ensure_initialized()
    java, gateway = SparkContext._jvm, None
    if java is None:
        # A temporary JVM: a later session would reuse a running one, which lacks its settings.
        had = os.environ.get("JAVA_HOME")
        os.environ["JAVA_HOME"] = str(find_java().home)
        conf = SparkConf(False).set("spark.driver.extraJavaOptions", _QUICK_START)
        try:
            gateway = launch_gateway(conf, {"stderr": DEVNULL})
        except PySparkRuntimeError as error:
            raise JavaError(f"cannot start Java to parse a DDL schema: {error}") from error
        finally:
            del os.environ["JAVA_HOME"]
            if had is not None:
                os.environ["JAVA_HOME"] = had
        java = gateway.jvm
    try:
        return t._parse_datatype_json_string(java.PythonSQLUtils.ddlToJson(text))
    except Py4JError as error:
        # The message is fetched from Java, so get it before the JVM ends.
        raise PySparkException(str(error)) from None
    finally:
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()


# -- values


def array_of(values: list[Any], kind: Any) -> Any:
    """A pyarrow.Array. Raises ValueError, TypeError or ArithmeticError for values that do not fit.

    Converts timestamps to numbers itself: pyarrow looks up the time zone offset of each, which
    takes longer than the rest of decoding.
    """
    if kind == TIMESTAMP:
        return pa.array([_micros(value) for value in values], pa.int64()).cast(kind)
    if not pa.types.is_struct(kind):
        return pa.array(values, type=kind)
    present = [{} if value is None else value for value in values]
    columns = []
    for field in kind:
        name = field.name
        columns.append(array_of([value.get(name) for value in present], field.type))
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _micros(time: dt.datetime | None) -> int | None:
    """Microseconds since 1970; a time without a zone is UTC."""
    if time is None:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=dt.UTC)
    if not _LEAST <= time <= _MOST:
        raise OverflowError("a timestamp outside the years 1 to 9999")
    since = time - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
