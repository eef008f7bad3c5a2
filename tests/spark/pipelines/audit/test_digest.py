"""A number for each row: the same for the same content, however a file spells it."""

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from moldau.spark.pipelines.audit.digest import column_digests, joined  # noqa: E402

VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=40)


@given(VALUES)
def test_values_have_the_same_number_if_and_only_if_they_are_equal(
    values: list[bytes | None],
) -> None:
    found = column_digests(pa.array(values, pa.binary())).tolist()
    assert len(set(found)) == len(set(values))
    by_value = dict(zip(values, found, strict=True))
    assert [by_value[value] for value in values] == found


@given(VALUES, st.integers(0, 10))
def test_types_slices_and_chunks_do_not_matter(values: list[bytes | None], first: int) -> None:
    plain = pa.array(values, pa.binary())
    wanted = column_digests(plain)[first:].tolist()
    for column in (
        plain.slice(first),
        plain.cast(pa.large_binary()).slice(first),
        plain.dictionary_encode().slice(first),
        pa.chunked_array([plain.slice(first, 3), plain.slice(first + 3)], pa.binary()),
    ):
        assert column_digests(column).tolist() == wanted


def test_text_and_its_bytes_are_the_same() -> None:
    texts = ["", "a", "über", None]
    binary = [None if text is None else text.encode() for text in texts]
    assert (
        column_digests(pa.array(texts)).tolist()
        == column_digests(pa.array(binary, pa.binary())).tolist()
    )


def test_every_byte_of_a_long_value_counts_and_so_does_its_place() -> None:
    long = bytes(range(256)) * 20
    others = [long[:at] + bytes([long[at] ^ 1]) + long[at + 1 :] for at in range(0, 5120, 7)]
    swapped = long[8:16] + long[:8] + long[16:]
    found = column_digests(pa.array([long, *others, swapped, long + b"\0", long[:-1]]))
    assert len(set(found.tolist())) == len(found)


def test_no_headers_are_the_same_as_null_and_order_counts() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    a, b = {"key": "a", "value": b"1"}, {"key": "b", "value": None}
    rows = [[], None, [a], [b], [a, b], [b, a], [a, a]]
    found = column_digests(pa.array(rows, kind)).tolist()
    assert found[0] == found[1]
    assert len(set(found)) == len(rows) - 1
    assert column_digests(pa.array(rows, kind).slice(2)).tolist() == found[2:]


def test_units_of_time_do_not_matter() -> None:
    moments = pa.array([0, 1_700_000_000_123, None], pa.timestamp("ms", tz="UTC"))
    wanted = column_digests(moments).tolist()
    assert len(set(wanted)) == 3
    for unit in ("us", "ns"):
        assert column_digests(moments.cast(pa.timestamp(unit, tz="UTC"))).tolist() == wanted
    assert column_digests(moments.cast(pa.timestamp("us"))).tolist() == wanted


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, None], pa.int32()),
        pa.array([True, False, None]),
        pa.array([1.5, float("nan"), None]),
        pa.array([{"a": 1}, {"a": None}, None], pa.struct([("a", pa.int64())])),
        pa.array([[1], [2, 3], []], pa.list_(pa.int64())),
        pa.array([0, 1, None], pa.date32()),
    ],
)
def test_columns_of_decoded_values_have_numbers_too(column: object) -> None:
    found = column_digests(column).tolist()
    assert len(set(found)) == 3
    assert column_digests(column).tolist() == found


def test_the_order_of_columns_counts() -> None:
    one, two = (column_digests(pa.array(values)) for values in (["a"], ["b"]))
    assert joined([one, two]).tolist() != joined([two, one]).tolist()
    assert joined([one, two]).dtype == np.uint64
