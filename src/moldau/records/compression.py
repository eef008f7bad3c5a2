"""The compression codecs of record batches, with bounded decompression.

Compressed bytes come from clients, and a few kilobytes may claim to contain terabytes. So output
goes into a buffer of known size: it grows step by step up to the limit, and the decoder stops when
it is full. Sizes declared by the sender are used only to reject data, never to allocate memory. (A
zstd decoder also reserves its window, at most 128 MiB of address space, of which only the bytes
produced become memory.)
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import cache

import cramjam

from moldau.records.batch import BatchFormatError, Buffer

OUTPUT_BYTES_FIRST = 64 * 1024
OUTPUT_RATIO_FIRST = 6
"""First guess: large enough for most batches, so that they are decoded once."""
OUTPUT_GROWTH = 4

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
"""Magic, version, oldest compatible version. Readers must not insist on the two numbers: some
writers store them in the wrong byte order."""
XERIAL_BLOCK_BYTES = 32 * 1024
ZSTD_LEVEL = 3
GZIP_LEVEL = 6

_block_length = struct.Struct(">i")


class Codec(IntEnum):
    """Numbers as in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def config_name(self) -> str:
        """As in the topic configuration `compression.type`."""
        return "uncompressed" if self is Codec.NONE else self.name.lower()

    @classmethod
    def from_config_name(cls, name: str) -> "Codec":
        """The codec that a configuration names; producers say `none` for `uncompressed`.

        Raises KeyError for `producer` and unknown names.
        """
        return _CODECS_BY_NAME[name]


_CODECS_BY_NAME = {codec.config_name: codec for codec in Codec} | {"none": Codec.NONE}


def compress(codec: Codec, data: Buffer) -> bytes:
    """`data` in the form that every Kafka client reads."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, GZIP_LEVEL))
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            # Independent blocks: Kafka's Java client rejects linked ones.
            compressor = cramjam.lz4.Compressor(level=0, content_checksum=False, block_linked=False)
            compressor.compress(bytes(data))
            return bytes(compressor.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, ZSTD_LEVEL))


def decompress(codec: Codec, data: Buffer, bytes_max: int) -> bytes:
    """Raises BatchFormatError if the data is corrupt, or larger than `bytes_max` afterwards."""
    match codec:
        case Codec.NONE:
            if len(data) > bytes_max:
                raise BatchFormatError(f"{len(data)} bytes; the limit is {bytes_max}")
            return bytes(data)
        case Codec.GZIP:
            return _decompress_growing(cramjam.gzip.decompress_into, data, bytes_max)
        case Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), bytes_max)
        case Codec.LZ4:
            return _decompress_growing(cramjam.lz4.decompress_into, data, bytes_max)
        case Codec.ZSTD:
            return _decompress_growing(cramjam.zstd.decompress_into, data, bytes_max)


def _decompress_growing(
    decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, bytes_max: int
) -> bytes:
    """Decode into a buffer that grows until the data fits or the limit is reached.

    Only for a full buffer: corrupt data must not cost the memory and the time of the largest one.
    """
    capacity = min(bytes_max, max(OUTPUT_BYTES_FIRST, len(data) * OUTPUT_RATIO_FIRST))
    while True:
        output = bytearray(capacity)
        try:
            size = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if str(error) != _full_buffer_text():
                raise BatchFormatError(f"corrupt: {error}") from None
            if capacity >= bytes_max:
                raise BatchFormatError(f"more than {bytes_max} bytes when decompressed") from None
            capacity = min(bytes_max, capacity * OUTPUT_GROWTH)
        else:
            with memoryview(output) as view:
                return bytes(view[:size])


@cache
def _full_buffer_text() -> str:
    """How the decoders report a full buffer: by the same exception as corrupt data."""
    try:
        cramjam.gzip.decompress_into(cramjam.gzip.compress(bytes(2)), bytearray(1))
    except cramjam.DecompressionError as error:
        return str(error)
    raise RuntimeError("this version of cramjam does not report a full buffer")


def _compress_xerial(data: Buffer) -> bytes:
    """Snappy in the framing of the xerial library, which Kafka's Java client expects."""
    chunks = [XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        chunks += (_block_length.pack(len(block)), block)
    return b"".join(chunks)


def _decompress_snappy(data: memoryview, bytes_max: int) -> bytes:
    """One raw block, as librdkafka writes it, or xerial's frame of blocks."""
    if data[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _decompress_snappy_block(data, bytes_max)
    if len(data) < len(XERIAL_HEADER):
        raise BatchFormatError("truncated xerial header")
    chunks = []
    bytes_left = bytes_max
    position = len(XERIAL_HEADER)
    while position < len(data):
        if len(data) - position < _block_length.size:
            raise BatchFormatError("truncated xerial block length")
        (size,) = _block_length.unpack_from(data, position)
        position += _block_length.size
        if not 0 < size <= len(data) - position:
            raise BatchFormatError(f"xerial block of {size} bytes, {len(data) - position} left")
        chunk = _decompress_snappy_block(data[position : position + size], bytes_left)
        bytes_left -= len(chunk)
        chunks.append(chunk)
        position += size
    return b"".join(chunks)


def _decompress_snappy_block(block: memoryview, bytes_max: int) -> bytes:
    """A raw block declares its size; one that declares too much is rejected unread."""
    if not len(block):
        raise BatchFormatError("empty snappy block")
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > bytes_max:
            raise BatchFormatError(f"snappy block of {size} bytes; the limit is {bytes_max}")
        # Three bytes can encode 64: a block that declares a higher ratio is invalid, and must not
        # cause an allocation of that size.
        if size > len(block) * 64:
            raise BatchFormatError(f"{len(block)} bytes of snappy cannot contain {size}")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise BatchFormatError(str(error)) from None
