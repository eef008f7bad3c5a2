# cython: language_level=3
"""The fast decoder: fetched bytes to the buffers of Arrow columns.

`scan` finds ordinary batches, `decode` parses their records in one pass. Both return None for
anything unusual or corrupt: `fetched_batches.py` and `numpy_decoder.py` then handle it, or report
what is wrong. Neither reads past the end of a batch or record, nor writes more than the batches'
bytes could hold, whatever lengths the data claims.

Compiled against the stable ABI of Python 3.11 where there is a compiler (hatch_build.py).
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AsString, PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef enum:
    HEADER_BYTES = 61
    LENGTH_END = 12
    CRC_START = 21
    MAGIC = 2
    CODEC_MASK = 0x07
    APPEND_TIME_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    RECORD_BYTES_MIN = 7
    LENGTH_BYTES_MAX = 5
    HEADERS_BYTES_MIN = 2

cdef int64_t MS_MAX = 9223372036854775  # What fits as microseconds.
cdef int64_t OFFSET_MAX = <int64_t>1 << 62  # Below it nothing overflows that is added.


cdef struct Head:
    int64_t start, end, base_offset, last_delta, base_time, max_time, record_count, is_append_time


cdef struct Strings:
    int64_t count, size, nulls
    int32_t* offsets
    uint8_t* validity
    uint8_t* data


cdef struct Rows:
    int64_t start, end, last_offset, count, header_nulls
    bint has_last, with_headers
    int64_t* offsets
    int64_t* micros
    int32_t* types
    int32_t* header_offsets
    uint8_t* header_validity
    Strings keys, values, names, contents


cdef inline const uint8_t* number(const uint8_t* at, const uint8_t* end, int64_t* value) noexcept:
    """A zig-zag varint, and the position after it; NULL if it does not end, or is too long."""
    cdef uint64_t found = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at < end:
        byte = at[0]
        at += 1
        if shift == 63 and byte > 1:
            return NULL
        found |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int64_t>((found >> 1) ^ (~(found & 1) + 1))
            return at
        shift += 7
    return NULL


cdef inline const uint8_t* text(const uint8_t* at, const uint8_t* end, Strings* out) noexcept:
    """Copies a length-prefixed string, null for -1, or skips it if `out` is NULL.

    Returns the position after it; NULL if it is corrupt.
    """
    cdef int64_t length = 0
    at = number(at, end, &length)
    if at == NULL or length < -1 or length > end - at:
        return NULL
    if out != NULL:
        if length < 0:
            out.nulls += 1
        else:
            out.validity[out.count >> 3] |= <uint8_t>(1 << (out.count & 7))
            memcpy(out.data + out.size, at, <size_t>length)
            out.size += length
        out.count += 1
        out.offsets[out.count] = <int32_t>out.size
    return at + length if length > 0 else at


cdef bint headers(const uint8_t* at, const uint8_t* end, Rows* out) noexcept:
    """All headers of a record, which must end where it ends; False if they are corrupt."""
    cdef int64_t count = 0
    cdef int64_t number_of
    at = number(at, end, &count)
    if at == NULL or count < 0 or count > end - at:
        return False
    for number_of in range(count):
        at = text(at, end, &out.names)
        if at == NULL or out.names.nulls:  # A name cannot be null.
            return False
        at = text(at, end, &out.contents)
        if at == NULL:
            return False
    if count:
        out.header_validity[out.count >> 3] |= <uint8_t>(1 << (out.count & 7))
    else:
        out.header_nulls += 1
    out.header_offsets[out.count + 1] = <int32_t>out.names.count
    return at == end


cdef bint records(const uint8_t* at, const uint8_t* end, const Head* head, Rows* out) noexcept:
    """All records of a batch, which must fill its body; False if anything is corrupt."""
    cdef int64_t length = 0
    cdef int64_t time = 0
    cdef int64_t offset = 0
    cdef int64_t left = head.record_count
    cdef bint is_wanted
    cdef const uint8_t* stop
    while left:
        left -= 1
        stop = at + LENGTH_BYTES_MAX if end - at > LENGTH_BYTES_MAX else end
        at = number(at, stop, &length)
        if at == NULL or length < RECORD_BYTES_MIN - 1 or length > end - at:
            return False
        stop = at + length
        at = number(at + 1, stop, &time)
        if at == NULL:
            return False
        at = number(at, stop, &offset)
        if at == NULL or offset < 0 or offset > head.last_delta:
            return False
        # Sums may wrap around, as those of other readers do; unsigned, so that C allows it.
        offset = <int64_t>(<uint64_t>offset + <uint64_t>head.base_offset)
        if out.has_last and offset <= out.last_offset:
            return False
        out.last_offset = offset
        out.has_last = True
        is_wanted = out.start <= offset < out.end
        at = text(at, stop, &out.keys if is_wanted else NULL)
        if at == NULL:
            return False
        at = text(at, stop, &out.values if is_wanted else NULL)
        # A record without headers ends with one zero; one with headers does not.
        if at == NULL or at == stop or (at[0] == 0 and at + 1 != stop):
            return False
        if is_wanted:
            if out.with_headers and not headers(at, stop, out):
                return False
            # With LogAppendTime the timestamp of the batch counts, not those of its records.
            time = <int64_t>(<uint64_t>time + <uint64_t>head.base_time)
            time = head.max_time if head.is_append_time else time
            time = MS_MAX if time > MS_MAX else -MS_MAX if time < -MS_MAX else time
            out.offsets[out.count] = offset
            out.micros[out.count] = time * 1000
            out.types[out.count] = <int32_t>head.is_append_time
            out.count += 1
        at = stop
    return at == end


cdef inline int64_t signed(const uint8_t* at, int count) noexcept:
    """A big-endian number of `count` bytes."""
    cdef uint64_t found = <uint64_t>-1 if at[0] & 0x80 else 0
    cdef int place
    for place in range(count):
        found = (found << 8) | at[place]
    return <int64_t>found


def scan(memoryview data, int64_t start, int64_t end, crc32c):
    """The offset after the complete batches in `data`, and for `decode` those with offsets from
    `start` to before `end`, with checked CRC. None if any is unusual, or if there is none."""
    cdef Py_buffer view
    cdef Head head
    cdef int64_t place = 0
    cdef int64_t next_offset = 0
    cdef int64_t size, attributes
    cdef const uint8_t* at
    heads = bytearray()
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while view.len - place >= HEADER_BYTES:
            at = <const uint8_t*>view.buf + place
            size = signed(at + 8, 4) + LENGTH_END
            if size > view.len - place:
                break
            attributes = signed(at + CRC_START, 2)
            head.base_offset, head.last_delta = signed(at, 8), signed(at + 23, 4)
            head.base_time, head.max_time = signed(at + 27, 8), signed(at + 35, 8)
            head.record_count = signed(at + 57, 4)
            head.start, head.end = place + HEADER_BYTES, place + size
            head.is_append_time = attributes & APPEND_TIME_BIT != 0
            if (
                size < HEADER_BYTES
                or at[16] != MAGIC
                or attributes & (CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT)
                or head.last_delta < 0
                or head.record_count < 0
                or not 0 <= head.base_offset < OFFSET_MAX
            ):
                return None
            next_offset = head.base_offset + head.last_delta + 1
            if next_offset > start and head.base_offset < end:
                if crc32c(data[place + CRC_START : place + size]) != <uint32_t>signed(at + 17, 4):
                    return None
                if head.record_count:
                    heads += (<const char*>&head)[: sizeof(Head)]
            place += size
            if next_offset >= end:
                break
        return (next_offset, heads) if place else None
    finally:
        PyBuffer_Release(&view)


def packed(list bodies):
    """The same for `decode`, of batches that `fetched_batches.py` found."""
    cdef Head head
    heads = bytearray()
    for start, end, header in bodies:
        head.base_offset = header.base_offset
        head.last_delta = header.last_offset_delta
        head.base_time = header.base_timestamp
        head.max_time = header.max_timestamp
        head.record_count = header.record_count
        head.start, head.end = start, end
        head.is_append_time = header.attributes & APPEND_TIME_BIT != 0
        heads += (<const char*>&head)[: sizeof(Head)]
    return heads


cdef tuple room(Strings* out, int64_t count_max, int64_t size_max):
    """Buffers for the maximum size: pages that are not written take no memory."""
    validity = bytearray((count_max + 7) // 8)
    offsets = PyByteArray_FromStringAndSize(NULL, 4 * (count_max + 1))
    data = PyByteArray_FromStringAndSize(NULL, size_max)
    out.validity = <uint8_t*>PyByteArray_AsString(validity)
    out.offsets = <int32_t*>PyByteArray_AsString(offsets)
    out.offsets[0] = 0
    out.data = <uint8_t*>PyByteArray_AsString(data)
    return validity, offsets, data


cdef tuple taken(Strings* out, tuple buffers):
    validity, offsets, data = buffers
    return out.count, out.nulls, validity, offsets, memoryview(data)[: out.size]


def decode(data, bytearray packed, int64_t start, int64_t end, bint with_headers):
    """The same as `numpy_decoder.decode`, but None if anything is corrupt."""
    cdef Py_buffer view
    cdef Rows rows
    cdef Py_ssize_t place
    cdef Py_ssize_t count = len(packed) // sizeof(Head)
    cdef const Head* heads = <const Head*>PyByteArray_AsString(packed)
    cdef int64_t size = 0
    cdef int64_t rows_max = 0
    memset(&rows, 0, sizeof(Rows))
    rows.start, rows.end, rows.with_headers = start, end, with_headers
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        for place in range(count):
            if not 0 <= heads[place].start <= heads[place].end <= view.len:
                raise IndexError(f"a batch ends at {heads[place].end} of {view.len} bytes")
            size += heads[place].end - heads[place].start
            rows_max += heads[place].record_count
        if rows_max > size // RECORD_BYTES_MIN:
            return None
        offsets = PyByteArray_FromStringAndSize(NULL, 8 * rows_max)
        micros = PyByteArray_FromStringAndSize(NULL, 8 * rows_max)
        types = PyByteArray_FromStringAndSize(NULL, 4 * rows_max)
        rows.offsets = <int64_t*>PyByteArray_AsString(offsets)
        rows.micros = <int64_t*>PyByteArray_AsString(micros)
        rows.types = <int32_t*>PyByteArray_AsString(types)
        keys, values = room(&rows.keys, rows_max, size), room(&rows.values, rows_max, size)
        if with_headers:
            header_offsets = PyByteArray_FromStringAndSize(NULL, 4 * (rows_max + 1))
            rows.header_offsets = <int32_t*>PyByteArray_AsString(header_offsets)
            rows.header_offsets[0] = 0
            header_validity = bytearray((rows_max + 7) // 8)
            rows.header_validity = <uint8_t*>PyByteArray_AsString(header_validity)
            names = room(&rows.names, size // HEADERS_BYTES_MIN, size)
            contents = room(&rows.contents, size // HEADERS_BYTES_MIN, size)
        for place in range(count):
            if not records(
                <const uint8_t*>view.buf + heads[place].start,
                <const uint8_t*>view.buf + heads[place].end,
                &heads[place],
                &rows,
            ):
                return None
        lists = None
        if with_headers:
            lists = (rows.header_nulls, header_validity, header_offsets,
                     taken(&rows.names, names), taken(&rows.contents, contents))
        return (rows.count, offsets, micros, types,
                taken(&rows.keys, keys), taken(&rows.values, values), lists)
    finally:
        PyBuffer_Release(&view)
