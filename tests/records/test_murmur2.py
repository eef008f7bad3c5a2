"""The hash of keys, against what Kafka's own tests and another client say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as their_murmur2

from moldau.records.murmur2 import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_known_keys_have_known_hashes(key, signed):
    assert murmur2(key) == signed % 2**32


@given(st.binary(max_size=40))
def test_another_client_has_the_same(key):
    assert murmur2(key) == their_murmur2(key) % 2**32


@given(st.binary(max_size=12), st.integers(1, 1000))
def test_every_key_has_a_place(key, partitions):
    assert 0 <= partition_of(key, partitions) < partitions
