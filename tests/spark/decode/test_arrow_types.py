"""Types of columns: as Spark writes them, read by its parser; what may be null; new fields."""

import json
import os
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.arrow_types import (
    TIMESTAMP,
    columns_of,
    from_ddl,
    from_spark,
    from_spark_json,
    list_of,
    map_of,
    spark_json,
    with_new_fields,
)

pytestmark = pytest.mark.spark

SCALARS = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32(), TIMESTAMP, pa.timestamp("us"), pa.decimal128(10, 3)),
]


def structs(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(
        st.builds(pa.field, st.text(min_size=1, max_size=6), inner, st.booleans()),
        min_size=1,
        max_size=4,
        unique_by=lambda field: field.name.lower(),
    )
    return fields.map(pa.struct)


TYPES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        st.builds(list_of, inner, nullable=st.booleans())
        | st.builds(map_of, st.just(pa.string()), inner, nullable=st.booleans())
        | structs(inner)
    ),
    max_leaves=6,
)


@given(kind=structs(TYPES))
def test_what_is_written_is_read_again(kind: Any) -> None:
    assert from_spark_json(json.loads(spark_json(kind))) == kind
    assert "not null" not in str(columns_of(kind))
    assert with_new_fields(kind, kind) == kind


def test_only_fields_that_are_new_are_added() -> None:
    known = pa.struct([("a", pa.int64()), ("in", list_of(pa.struct([("x", pa.int32())])))])
    seen = pa.struct(
        [("A", pa.string()), ("new", pa.bool_()), ("in", list_of(pa.struct([("y", pa.string())])))]
    )
    inner = list_of(pa.struct([("x", pa.int32()), ("y", pa.string())]))
    assert with_new_fields(known, seen) == pa.struct(
        [("a", pa.int64()), ("in", inner), ("new", pa.bool_())]
    )


def test_words_of_spark_are_known(spark: Any) -> None:
    found = from_ddl(
        "a INT COMMENT 'the, first', `b c` struct<x:LONG,y: decimal>NOT NULL, d varchar(3), "
        "e map<string, array<timestamp_ltz>>"
    )
    inner = pa.struct([("x", pa.int64()), ("y", pa.decimal128(10, 0))])
    assert found == pa.struct(
        [
            pa.field("a", pa.int32()),
            pa.field("b c", inner, nullable=False),
            pa.field("d", pa.string()),
            pa.field("e", map_of(pa.string(), list_of(TIMESTAMP))),
        ]
    )
    assert from_ddl("struct<a: int>") == from_ddl("a int")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "near end of input"),
        ("a nonsense", "NONSENSE"),
        ("a int b", "near 'b'"),
        ("a int, A string", "twice"),
        ("a array<int", "cannot read the schema as DDL"),
        ("a decimal(40,2)", "max precision 38"),
        ("", "no fields"),
        ("int", "no fields"),
        ("a variant", "type variant, which is not supported"),
        ("a interval day", "type interval day, which is not supported"),
        ("a string collate UNICODE", "type string collate UNICODE, which is not supported"),
    ],
)
def test_what_is_no_schema_says_where(spark: Any, text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        from_ddl(text)


def test_a_struct_type_keeps_what_is_required() -> None:
    given_type = t.StructType(
        [
            t.StructField("a", t.LongType(), nullable=False),
            t.StructField("b", t.ArrayType(t.DecimalType(5, 2), containsNull=False)),
            t.StructField("c", t.MapType(t.StringType(), t.TimestampNTZType())),
        ]
    )
    assert from_spark(given_type) == pa.struct(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("b", list_of(pa.decimal128(5, 2), nullable=False)),
            pa.field("c", map_of(pa.string(), pa.timestamp("us"))),
        ]
    )
    for broken in ({"type": "struct"}, {"type": "struct", "fields": [{"name": "a", "type": "x"}]}):
        with pytest.raises(InvalidArgumentError, match="not valid Spark JSON"):
            from_spark_json(broken)


WITHOUT_A_SESSION = """
import os
from moldau.client.errors import ClientError
from moldau.spark.decode import decoder

os.environ["JAVA_HOME"] = "/nowhere"
try:
    decoder("json", "id bigint")
except ClientError as error:
    print(type(error).__name__, error.hint != "")
del os.environ["JAVA_HOME"]
try:
    decoder("json", "id nonsense")
except ClientError as error:
    print(error)
print(decoder("json", "id bigint NOT NULL").struct)

from pyspark import SparkContext

print(SparkContext._gateway)
"""


def test_without_a_session_java_reads_a_schema_and_ends() -> None:
    """A session that comes later starts a Java of its own, with its settings."""
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_SESSION], env=environ, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "JavaError True",
        'Spark cannot read the schema as DDL: Unsupported data type "NONSENSE". (id nonsense)',
        "struct<id: int64 not null>",
        "None",
    ], done.stderr


@pytest.mark.parametrize("kind", ["decimal(40,2)", "decimal(5,10)", "decimal(5,-2)"])
def test_a_decimal_that_no_column_holds_is_refused(kind: str) -> None:
    field = {"name": "a", "type": kind, "nullable": True, "metadata": {}}
    with pytest.raises(InvalidArgumentError, match="which is not supported"):
        from_spark_json({"type": "struct", "fields": [field]})
