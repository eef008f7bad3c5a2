"""What classic consumers say and are told, in their own bytes."""

import struct

import pytest
from group_clients import subscription
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moldau.groups.consumer_protocol import (
    ConsumerAssignment,
    Subscription,
    assignment_bytes,
    read_assignment,
    read_subscription,
    subscribed_topics,
)

names = st.text("abcü", min_size=1, max_size=5)
partitions = st.dictionaries(names, st.frozensets(st.integers(0, 2**31 - 1), min_size=1))


def test_a_subscription_names_its_topics():
    head = struct.pack(">hi", 0, 2) + b"\x00\x01a\x00\x02bc"
    assert subscribed_topics(head + b"anything") == frozenset({"a", "bc"})
    assert subscribed_topics(struct.pack(">hi", 0, 0)) == frozenset()


@given(st.frozensets(names), partitions)
def test_a_subscription_says_what_is_still_read(topics, owned):
    assert read_subscription(subscription(topics, owned)) == Subscription(
        topics=topics, owned=owned
    )


def test_later_versions_of_a_subscription_have_a_generation_and_a_rack():
    first = subscription(["t"], {"t": frozenset({1})})[2:]
    second = struct.pack(">h", 2) + first + struct.pack(">i", 7)
    third = struct.pack(">h", 3) + second[2:] + b"\x00\x02r1"
    wanted = Subscription(topics=frozenset({"t"}), owned={"t": frozenset({1})}, generation=7)
    assert read_subscription(second) == wanted
    assert read_subscription(third) == replace(wanted, rack="r1")


@given(partitions)
def test_an_assignment_round_trips(assigned):
    assert read_assignment(assignment_bytes(assigned)) == ConsumerAssignment(partitions=assigned)


def test_an_assignment_is_what_kafka_writes():
    assert assignment_bytes({"b": [2, 1]}).hex() == (
        "0000 00000001 0001 62 00000002 00000001 00000002 ffffffff".replace(" ", "")
    )


def test_no_bytes_are_no_partitions_and_data_of_an_assignor_is_returned():
    assert read_assignment(b"") == ConsumerAssignment(partitions={})
    data = assignment_bytes({})[:-4] + struct.pack(">i", 2) + b"ab"
    assert read_assignment(data) == ConsumerAssignment(partitions={}, user_data=b"ab")


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_harmless(data):
    topics = subscribed_topics(data)
    assert topics is None or all(topic.encode() in data for topic in topics)
    assert read_subscription(data) is None or topics is not None
    read = read_assignment(data)
    assert read is None or all(topic.encode() in data for topic in read.partitions)


@pytest.mark.parametrize("read", [subscribed_topics, read_subscription, read_assignment])
def test_bytes_that_promise_too_much_are_refused(read):
    assert read(struct.pack(">hihi", 0, 2**31 - 1, 0, 2**31 - 1)) is None
    assert read(struct.pack(">hih", 0, 1, -5)) is None
    assert read(struct.pack(">hi", -1, 0)) is None


def test_an_assignment_that_ends_early_is_refused():
    whole = assignment_bytes({"topic": [1, 2, 3]})
    for end in range(1, len(whole) - 4):
        assert read_assignment(whole[:end]) is None
