"""Codecs: both directions against other libraries, damage, and bombs."""

import gzip
import resource
import struct
import tracemalloc

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec as kafka_python

from moldau.records.batch import BatchFormatError
from moldau.records.compression import XERIAL_HEADER, Codec, compress, decompress

BYTES_MAX = 1 << 22
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
SAMPLES = [
    b"",
    b"x",
    b"The river runs through the town. " * 40,
    bytes(range(256)) * 700,
    b"\x00" * 300_000,
]


def zstd_of_unknown_size(data: bytes) -> bytes:
    writer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return writer.compress(data) + writer.flush()


OTHERS_COMPRESS = {
    "gzip": (Codec.GZIP, gzip.compress),
    "gzip of kafka-python": (Codec.GZIP, kafka_python.gzip_encode),
    "snappy raw": (Codec.SNAPPY, snappy.compress),
    "snappy xerial": (Codec.SNAPPY, kafka_python.snappy_encode),
    "lz4": (Codec.LZ4, lz4.frame.compress),
    "lz4 without size": (Codec.LZ4, lambda data: lz4.frame.compress(data, store_size=False)),
    "lz4 independent": (Codec.LZ4, kafka_python.lz4_encode),
    "lz4 checksums": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(data, content_checksum=True, block_checksum=True),
    ),
    "zstd": (Codec.ZSTD, zstandard.ZstdCompressor().compress),
    "zstd of unknown size": (Codec.ZSTD, zstd_of_unknown_size),
    "zstd checksum": (Codec.ZSTD, zstandard.ZstdCompressor(write_checksum=True).compress),
}
OTHERS_DECOMPRESS = {
    "gzip": (Codec.GZIP, gzip.decompress),
    "kafka-python snappy": (Codec.SNAPPY, kafka_python.snappy_decode),
    "lz4": (Codec.LZ4, lz4.frame.decompress),
    "kafka-python zstd": (Codec.ZSTD, kafka_python.zstd_decode),
    "zstd one-shot": (Codec.ZSTD, zstandard.ZstdDecompressor().decompress),
}


@pytest.mark.parametrize("name", list(OTHERS_COMPRESS))
@pytest.mark.parametrize("sample", range(len(SAMPLES)))
def test_what_others_compress_is_read(name, sample):
    codec, compress_theirs = OTHERS_COMPRESS[name]
    assert decompress(codec, compress_theirs(SAMPLES[sample]), BYTES_MAX) == SAMPLES[sample]


@pytest.mark.parametrize("name", list(OTHERS_DECOMPRESS))
@pytest.mark.parametrize("sample", range(len(SAMPLES)))
def test_what_is_compressed_others_read(name, sample):
    codec, decompress_theirs = OTHERS_DECOMPRESS[name]
    # An empty xerial stream is valid, but kafka-python takes it for a raw block.
    if codec is Codec.SNAPPY and not SAMPLES[sample]:
        assert compress(codec, b"") == XERIAL_HEADER
        return
    assert bytes(decompress_theirs(compress(codec, SAMPLES[sample]))) == SAMPLES[sample]


@given(st.sampled_from(Codec), st.binary(max_size=3000), st.integers(1, 60))
def test_round_trip(codec, data, times):
    data *= times
    for view in (data, bytearray(data), memoryview(b"-" + data)[1:]):
        assert decompress(codec, memoryview(compress(codec, view)), len(data)) == data


def test_lz4_blocks_are_independent_because_java_clients_refuse_linked_ones():
    frame = lz4.frame.get_frame_info(compress(Codec.LZ4, b"abc" * 100_000))
    assert not frame["block_linked"]


def test_snappy_is_written_in_xerial_framing():
    data = bytes(range(256)) * 1000
    compressed = compress(Codec.SNAPPY, data)
    assert compressed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    (first,) = struct.unpack_from(">i", compressed, 16)
    assert snappy.decompress(compressed[20 : 20 + first]) == data[: 32 * 1024]


def test_xerial_versions_in_the_wrong_byte_order_are_read():
    compressed = bytearray(compress(Codec.SNAPPY, b"abc" * 50))
    struct.pack_into("<ii", compressed, 8, 1, 1)
    assert decompress(Codec.SNAPPY, compressed, BYTES_MAX) == b"abc" * 50


@pytest.mark.parametrize("name", list(OTHERS_COMPRESS))
def test_data_cut_at_any_byte_is_refused_or_shorter(name):
    codec, compress_theirs = OTHERS_COMPRESS[name]
    data = b"The river runs through the town. " * 5
    compressed = compress_theirs(data)
    for size in range(len(compressed)):
        # A xerial stream has no end mark: cut between two blocks, it is only shorter.
        if name == "snappy xerial" and size == len(XERIAL_HEADER):
            assert decompress(codec, compressed[:size], BYTES_MAX) == b""
            continue
        with pytest.raises(BatchFormatError):
            decompress(codec, compressed[:size], BYTES_MAX)


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=st.binary(max_size=300))
def test_garbage_is_refused_or_bounded(codec, data):
    try:
        assert len(decompress(codec, data, 1000)) <= 1000
    except BatchFormatError:
        return


@pytest.mark.parametrize("codec", COMPRESSED)
@given(seed=st.randoms(use_true_random=False))
def test_damage_is_refused_or_bounded(codec, seed):
    compressed = bytearray(compress(codec, b"The river runs through the town. " * 50))
    for _ in range(3):
        compressed[seed.randrange(len(compressed))] ^= 1 << seed.randrange(8)
    try:
        assert len(decompress(codec, compressed, 10_000)) <= 10_000
    except BatchFormatError:
        return


@pytest.mark.parametrize("codec", list(Codec))
def test_the_bound_is_exact(codec):
    data = b"The river runs through the town. " * 5000
    compressed = compress(codec, data)
    assert decompress(codec, compressed, len(data)) == data
    with pytest.raises(BatchFormatError):
        decompress(codec, compressed, len(data) - 1)


def bombs() -> dict[str, tuple[Codec, bytes]]:
    zeros = b"\x00" * (32 << 20)
    result = {name: (codec, theirs(zeros)) for name, (codec, theirs) in OTHERS_COMPRESS.items()}
    many = kafka_python.snappy_encode(b"\x00" * (1 << 20), xerial_blocksize=1 << 20)
    result["snappy xerial, many blocks"] = (Codec.SNAPPY, many[:16] + many[16:] * 200)
    small = zstandard.ZstdCompressor().compress(zeros)
    result["zstd, many frames"] = (Codec.ZSTD, small * 100)
    result["gzip, many members"] = (Codec.GZIP, gzip.compress(zeros) * 20)
    result["lz4, many frames"] = (Codec.LZ4, lz4.frame.compress(zeros) * 20)
    result["snappy raw, declared 4 GiB"] = (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 200)
    result["zstd, declared 2**60"] = (
        Codec.ZSTD,
        struct.pack("<IBQ", 0xFD2FB528, 0b1110_0000, 1 << 60) + small[10:],
    )
    return result


def test_bombs_are_refused_within_the_bound():
    everything = bombs()
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        for name, (codec, bomb) in everything.items():
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with pytest.raises(BatchFormatError):
                decompress(codec, bomb, BYTES_MAX)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 2 * BYTES_MAX, name
    finally:
        tracemalloc.stop()
    # Memory that the decoders take outside Python: the bombs of many frames hold 640 MiB and more.
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before
    assert peak_kib < 16 * 1024


def test_codecs_are_named_as_in_topic_configurations():
    assert [codec.config_name for codec in Codec] == [
        "uncompressed",
        "gzip",
        "snappy",
        "lz4",
        "zstd",
    ]
    assert all(Codec.from_config_name(codec.config_name) is codec for codec in Codec)
    assert Codec.from_config_name("none") is Codec.NONE
    with pytest.raises(KeyError):
        Codec.from_config_name("producer")


@pytest.mark.parametrize("codec", COMPRESSED)
def test_corrupt_data_costs_no_buffer_of_the_largest_size(codec):
    whole = compress(codec, b"The river runs through the town. " * 40)
    for corrupt in (b"junk" * 10, whole[: len(whole) // 2], b"\xff" + whole[1:]):
        tracemalloc.start()
        with pytest.raises(BatchFormatError):
            decompress(codec, corrupt, 1 << 30)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20
