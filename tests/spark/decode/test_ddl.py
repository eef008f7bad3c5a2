"""Schemas as Spark writes them are read without Spark, and written again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode.column_types import (
    SCALARS,
    Array,
    Decimal,
    Field,
    Map,
    Scalar,
    Struct,
    Type,
    fields_ddl,
)
from moldau.spark.decode.ddl import from_spark_json, parse_ddl

pytestmark = pytest.mark.spark

NAMES = st.text(min_size=1, max_size=6).filter(lambda name: name.strip() == name)


def structs(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Struct]:
    fields = st.lists(
        st.builds(Field, NAMES, inner, st.booleans()),
        min_size=1,
        max_size=4,
        unique_by=lambda field: field.name.lower(),
    )
    return fields.map(lambda found: Struct(tuple(found)))


TYPES: st.SearchStrategy[Type] = st.recursive(
    st.sampled_from(SCALARS).map(Scalar) | st.builds(Decimal, st.just(10), st.integers(0, 10)),
    lambda inner: (
        inner.map(Array) | st.builds(Map, st.just(Scalar("string")), inner) | structs(inner)
    ),
    max_leaves=6,
)


@given(kind=structs(TYPES))
def test_what_is_written_is_read_again(kind: Struct) -> None:
    assert parse_ddl(fields_ddl(kind, requirements=True)) == kind


def test_words_of_spark_are_known() -> None:
    found = parse_ddl(
        "a INT COMMENT 'the, first', `b c` struct<x:LONG,y: decimal>NOT NULL, d varchar(3), "
        "e map<string, array<timestamp_ltz>>"
    )
    assert fields_ddl(found) == (
        "`a`: int, `b c`: struct<`x`: bigint, `y`: decimal(10,0)>, `d`: string, "
        "`e`: map<string,array<timestamp>>"
    )
    assert [field.required for field in found.fields] == [False, True, False, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "a type is expected where the end is"),
        ("a nonsense", "where nonsense is"),
        ("a int b", "where b is"),
        ("a int, A string", "twice"),
        ("a array<int", "where the end is"),
        ("a decimal(40,2)", "none of Spark's"),
        ("", "no fields"),
        ("a variant", "where variant is"),
    ],
)
def test_what_is_no_schema_says_where(text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        parse_ddl(text)


def test_the_json_of_a_struct_type_is_read() -> None:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from pyspark.sql import types as t

    given_type = t.StructType(
        [
            t.StructField("a", t.LongType(), nullable=False),
            t.StructField("b", t.ArrayType(t.DecimalType(5, 2), containsNull=False)),
            t.StructField("c", t.MapType(t.StringType(), t.TimestampNTZType())),
        ]
    )
    assert from_spark_json(given_type.jsonValue()) == Struct(
        (
            Field("a", Scalar("bigint"), True),
            Field("b", Array(Decimal(5, 2), True)),
            Field("c", Map(Scalar("string"), Scalar("timestamp_ntz"))),
        )
    )
