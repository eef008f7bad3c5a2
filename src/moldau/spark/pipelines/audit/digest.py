"""Owns a number of 64 bits for every row, made for whole Arrow columns at once.

Bytes are looked at as words of eight. Each word is mixed with its place, the mixed words of a value
are added up, and the sum is mixed once more with the length: no Python object is made for a row. It
finds accidents, and is no protection against somebody who wants two rows to look the same.

The same row gives the same number whatever a file made of its types: text or binary, wide or narrow
offsets, dictionaries, other units of time. No headers, null and an empty list are the same.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Words = Any
"""A numpy array of uint64."""

_PLACE: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_LENGTH: Final = np.uint64(0xD6E8FEB86659FD93)
_NULL: Final = np.uint64(0x1D8E4E27C47D124F)
_WORD_BYTES: Final = 8
_WORDS_MAX: Final = 128 * 1024
"""So many words at a time stay in the processor's cache."""
_MASKS: Final = np.array(
    [0xFFFF_FFFF_FFFF_FFFF, *((1 << (8 * count)) - 1 for count in range(1, _WORD_BYTES))],
    dtype=np.uint64,
)
"""What counts of the last word of a value, by the length of the value modulo eight."""


def mixed(words: Words) -> Words:
    """Every bit of the result depends on every bit of the word; different words stay different."""
    found = words ^ (words >> np.uint64(30))
    found *= _FIRST
    found ^= found >> np.uint64(27)
    found *= _SECOND
    found ^= found >> np.uint64(31)
    return found


def number_digests(numbers: Any) -> Words:
    """Of an array of whole numbers of up to 64 bits."""
    return mixed(np.asarray(numbers).astype(np.int64).view(np.uint64) + _PLACE)


def column_digests(column: Any) -> Words:
    """Of an Arrow array: numbers, times, flags, text, bytes, and structs and lists of those."""
    column = _plain(column)
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), _NULL)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _with_nulls(_bytes_digests(column), column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_digests(column)
    if pa.types.is_struct(kind):
        fields = [column_digests(part) for part in column.flatten()]
        found = joined(fields) if fields else np.zeros(len(column), dtype=np.uint64)
        return _with_nulls(found, column)
    return _with_nulls(number_digests(_filled(column)), column)


def joined(parts: Sequence[Words]) -> Words:
    """One number per row for several, which depends on their order."""
    found = np.zeros(len(parts[0]), dtype=np.uint64)
    for part in parts:
        found = mixed(found * _LENGTH + part + _PLACE)
    return found


def _plain(column: Any) -> Any:
    """One array, without dictionaries, of the types that `column_digests` tells apart."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            # Older versions of Arrow keep what has no chunk at all.
            column = pa.concat_arrays(column.chunks) if column.num_chunks else column
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if pa.types.is_map(kind):
        return column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    if pa.types.is_string(kind):
        return column.view(pa.binary())
    if pa.types.is_large_string(kind):
        return column.view(pa.large_binary())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", tz=kind.tz), safe=False).view(pa.int64())
    if pa.types.is_floating(kind):
        # By their bits, but one zero and one not-a-number.
        wide = column.cast(pa.float64())
        return pc.add(wide, 0.0).view(pa.int64())
    if (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_struct(kind)
        or pa.types.is_null(kind)
    ):
        return column
    return _plain(column.cast(pa.string()))


def _filled(column: Any) -> Any:
    """Numbers as numpy has them; whatever stands where there is none."""
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if column.null_count:
        column = column.fill_null(0)
    return column.to_numpy(zero_copy_only=False)


def _with_nulls(found: Words, column: Any) -> Words:
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return found


def _edges(column: Any) -> Any:
    """Where each element begins in what the column points to, and where the last one ends."""
    is_wide = pa.types.is_large_binary(column.type) or pa.types.is_large_list(column.type)
    _, offsets = column.buffers()[:2]
    if not len(column) or offsets is None:
        return np.zeros(len(column) + 1, dtype=np.int64)
    numbers = np.frombuffer(offsets, dtype=np.int64 if is_wide else np.int32)
    return numbers[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _bytes_digests(column: Any) -> Words:
    edges = _edges(column)
    lengths = np.diff(edges)
    first, last = int(edges[0]), int(edges[-1])
    data = np.zeros(last - first + _WORD_BYTES, dtype=np.uint8)
    content = column.buffers()[2]
    if content is not None and last > first:
        data[: last - first] = np.frombuffer(content, dtype=np.uint8, count=last)[first:]
    # Eight bytes from every place on, aligned or not.
    words = np.ndarray(
        shape=(len(data) - _WORD_BYTES + 1,), dtype="<u8", buffer=data.data, strides=(1,)
    )
    starts = edges[:-1] - first
    counts = -(-lengths // _WORD_BYTES)
    before = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=before[1:])
    found = np.zeros(len(counts), dtype=np.uint64)
    begin = 0
    while begin < len(counts):
        end = int(np.searchsorted(before, before[begin] + _WORDS_MAX, side="right")) - 1
        end = min(max(end, begin + 1), len(counts))
        some = slice(begin, end)
        found[some] = _sums(words, starts[some], lengths[some], counts[some])
        begin = end
    return mixed(found + lengths.astype(np.uint64) * _LENGTH + _PLACE)


def _sums(words: Words, starts: Any, lengths: Any, counts: Any) -> Words:
    """The mixed words of every value, added up."""
    found = np.zeros(len(counts), dtype=np.uint64)
    filled = np.flatnonzero(counts)
    if not filled.size:
        return found
    counts = counts[filled]
    ends = np.cumsum(counts)
    begins = ends - counts
    number = np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(begins, counts)
    taken = words[np.repeat(starts[filled], counts) + number * _WORD_BYTES]
    taken[ends - 1] &= _MASKS[lengths[filled] % _WORD_BYTES]
    taken += (number + 1).view(np.uint64) * _PLACE
    found[filled] = np.add.reduceat(mixed(taken), begins)
    return found


def _list_digests(column: Any) -> Words:
    edges = _edges(column)
    counts = np.diff(edges)
    if column.null_count:
        counts = np.where(column.is_null().to_numpy(zero_copy_only=False), 0, counts)
    found = np.zeros(len(column), dtype=np.uint64)
    filled = np.flatnonzero(counts)
    if filled.size:
        some = counts[filled]
        ends = np.cumsum(some)
        number = np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(ends - some, some)
        elements = column_digests(column.values)[np.repeat(edges[:-1][filled], some) + number]
        elements += (number + 1).view(np.uint64) * _PLACE
        found[filled] = np.add.reduceat(mixed(elements), ends - some)
    return mixed(found + counts.astype(np.uint64) * _LENGTH + _PLACE)
