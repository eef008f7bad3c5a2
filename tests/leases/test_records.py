"""The bytes of `__queue_state`."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.leases.config import QueueConfig
from moldau.leases.delay_buckets import DAY_MS, MINUTE_MS, SPANS_MS, DelayBucket
from moldau.leases.records import SLOTS, decode, encode, queue_key, tombstones
from moldau.leases.state import Dead, Leased, QueueId, QueueRecord, QueueState, Waiting
from moldau.leases.tokens import Token, decode_token, encode_token
from moldau.model.errors import CorruptionError, RefusedError

QUEUE = QueueId("g", b"t" * 16, 2)
_times = st.integers(0, 2**63 - 1)
_attempts = st.integers(0, 2**31 - 1)
_texts = st.text(st.characters(codec="utf-8"), max_size=20)
_entries = (
    st.builds(Leased, _attempts, _texts, _times, st.integers(0, 2**31 - 1))
    | st.builds(Waiting, _attempts, _times)
    | st.builds(Dead, _attempts, _texts)
)
_queues = st.builds(
    QueueId,
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**31 - 1),
)


@st.composite
def queue_records(draw):
    end = draw(st.sampled_from([0, 10, 500, 2**63 - 1]))
    offsets = st.integers(0, end - 1) if end else st.nothing()
    opened = draw(st.dictionaries(offsets, _entries, max_size=20)) if end else {}
    leases = [entry for entry in opened.values() if isinstance(entry, Leased)]
    epoch = max([draw(st.integers(0, 2**31 - 1)), *(lease.epoch for lease in leases)])
    is_snapshot = draw(st.booleans())
    settled = () if is_snapshot or not end else draw(st.frozensets(offsets, max_size=20))
    buckets = {}
    for span in draw(st.lists(st.sampled_from(SPANS_MS), max_size=5)) if end else ():
        begin = draw(st.integers(0, 2**63 // span - 1)) * span
        first, last = sorted(draw(st.tuples(offsets, offsets)))
        buckets[span, begin] = DelayBucket(span, begin, first, last, draw(st.integers(0, 2**40)))
    return QueueRecord(
        queue=draw(_queues),
        sequence=draw(st.integers(1, 2**63 - 1)),
        epoch=epoch,
        next=end,
        settled=tuple(sorted(settled)),
        opened=tuple(sorted(opened.items(), key=lambda item: item[0])),
        is_snapshot=is_snapshot,
        buckets=tuple(buckets[key] for key in sorted(buckets)),
    )


@given(queue_records())
def test_what_is_written_is_read(record):
    assert decode(*encode(record)) == record


def test_the_bytes_are_as_documented():
    record = QueueRecord(
        queue=QUEUE,
        sequence=130,
        epoch=7,
        next=20,
        settled=(3, 4, 5, 9),
        opened=((10, Leased(1, "ann", 1_005, 7)), (12, Waiting(2, 1_000)), (13, Dead(3, "bad"))),
    )
    key, value = encode(record)
    assert key == bytes.fromhex("0001 0001 67") + b"t" * 16 + bytes.fromhex("00000002 0002")
    assert value == bytes.fromhex(
        "0000 00 00000007 0000000000000082 0000000000000014"  # version, flags, epoch, number, next
        "00000000000003e8"  # base of times
        "02 03 616e6e 03 626164"  # texts
        "02 03 03 03 01"  # runs: from 3 three, 3 further one
        "03 0a 04 05 00"  # leased: offset, attempts, deadline, holder
        "01 09 00"  # waiting: one offset between, attempts, time
        "00 0e 01"  # dead: the offset after, attempts, reason
    )


def test_the_bytes_of_delay_buckets_are_as_documented():
    buckets = (
        DelayBucket(MINUTE_MS, 2 * MINUTE_MS, 1, 9, 5),
        DelayBucket(DAY_MS, DAY_MS, 10, 12, 130),
    )
    record = QueueRecord(queue=QUEUE, sequence=1, epoch=0, next=20, buckets=buckets)
    assert encode(record)[1][31:] == bytes.fromhex(
        "00 00 00"  # no texts, nothing settled, nothing open
        "02"
        "02 02 01 08 05"  # minutes, the second after the first, from 1 for 8, 5 messages
        "00 01 0a 02 8201"  # days
    )


@pytest.mark.parametrize(
    ("bucket", "said"), [("03 00 00 00 00", "kind 3"), ("00 00 00 15 00", "beyond its next")]
)
def test_an_impossible_delay_bucket_is_corrupt(bucket, said):
    buckets = (DelayBucket(MINUTE_MS, 0, 0, 1, 1),)
    record = QueueRecord(queue=QUEUE, sequence=1, epoch=0, next=20, buckets=buckets)
    key, value = encode(record)
    with pytest.raises(CorruptionError, match=said):
        decode(key, value[:-5] + bytes.fromhex(bucket))


def test_a_snapshot_has_a_key_of_its_own_and_changes_take_turns():
    def key_of(sequence, is_snapshot=False):
        record = QueueRecord(
            queue=QUEUE, sequence=sequence, epoch=0, next=0, is_snapshot=is_snapshot
        )
        return encode(record)[0]

    assert key_of(1, True) == key_of(2, True)
    changes = {key_of(sequence) for sequence in range(1, SLOTS + 1)}
    assert len(changes) == SLOTS
    assert key_of(SLOTS + 1) == key_of(1)
    assert {key for key, _ in tombstones(QUEUE)} == changes | {key_of(1, True)}


@given(st.binary(max_size=64), st.none() | st.binary(max_size=128))
def test_arbitrary_bytes_are_read_or_refused_as_corrupt(key, value):
    with suppress(CorruptionError):
        decode(key, value)


@given(queue_records(), st.data())
def test_bytes_that_were_changed_are_applied_or_refused_as_corrupt(record, data):
    key, value = encode(record)
    place = data.draw(st.integers(0, len(value) - 1))
    changed = bytearray(value)
    changed[place] = data.draw(st.integers(0, 255))
    with suppress(CorruptionError):
        found = decode(key, bytes(changed))
        assert isinstance(found, QueueRecord)
        state = QueueState()
        state.apply(QueueRecord(queue=found.queue, sequence=1, epoch=0, next=5, is_snapshot=True))
        state.apply(found)
        assert all(state.get(offset) is not None for offset in state.open)


@given(queue_records(), st.data())
def test_a_value_that_was_cut_or_is_too_long_is_corrupt(record, data):
    key, value = encode(record)
    with pytest.raises(CorruptionError):
        decode(key, value[: data.draw(st.integers(0, len(value) - 1))])
    with pytest.raises(CorruptionError):
        decode(key, value + b"\0")


def test_a_run_without_end_takes_no_memory():
    record = QueueRecord(queue=QUEUE, sequence=1, epoch=0, next=2**62)
    key, value = encode(record)
    run = b"\1" + b"\0" + b"\xff" * 8 + b"\x3f"
    with pytest.raises(CorruptionError, match="settles more"):
        decode(key, value[:-2] + run + b"\0")


def test_a_record_in_the_place_of_another_is_corrupt():
    change = QueueRecord(queue=QUEUE, sequence=1, epoch=0, next=0)
    other = QueueRecord(queue=QUEUE, sequence=2, epoch=0, next=0)
    whole = QueueRecord(queue=QUEUE, sequence=1, epoch=0, next=0, is_snapshot=True)
    for one, another in ((change, other), (change, whole), (whole, change)):
        with pytest.raises(CorruptionError, match=r"has (a|the) key of"):
            decode(encode(one)[0], encode(another)[1])


def test_a_later_version_of_a_value_is_refused_and_one_of_a_key_skipped():
    key, value = encode(QueueRecord(queue=QUEUE, sequence=1, epoch=0, next=0))
    with pytest.raises(CorruptionError, match="version 2"):
        decode(key, b"\0\2" + value[2:])
    assert decode(b"\0\7" + key[2:], value) is None


def test_a_tombstone_names_its_queue():
    assert {decode(key, value) for key, value in tombstones(QUEUE)} == {QUEUE}


@pytest.mark.parametrize("group", ["", "g" * 40_000])
def test_a_group_that_no_key_can_hold_is_refused(group):
    with pytest.raises(RefusedError):
        queue_key(QueueId(group, b"t" * 16, 0))


def test_the_largest_snapshot_fits_into_a_batch():
    config = QueueConfig()
    far = 2**56
    texts = config.leases_max
    opened = tuple(
        (
            offset * far // config.open_max,
            Leased(config.attempts_max, f"{offset:0{config.text_bytes_max}}", 2**62, 0)
            if offset < texts
            else Waiting(0, 2**62 + offset),
        )
        for offset in range(config.open_max)
    )
    record = QueueRecord(
        queue=QUEUE, sequence=1, epoch=1, next=far, opened=opened, is_snapshot=True
    )
    assert len(encode(record)[1]) < 1_000_000


@given(
    st.builds(
        Token,
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(1, 2**31 - 1),
    )
)
def test_a_token_survives_its_way_to_the_worker(token):
    assert decode_token(encode_token(token)) == token


@given(st.binary(max_size=40))
def test_bytes_are_a_token_or_none(data):
    token = decode_token(data)
    assert token is None or encode_token(token) == data


def test_a_token_of_another_version_is_none():
    data = encode_token(Token(1, 2, 3, 4))
    assert decode_token(b"\2" + data[1:]) is None
    assert decode_token(data + b"\0") is None


def test_a_record_without_a_group_name_is_corrupt():
    key, value = encode(QueueRecord(queue=QUEUE, sequence=1, epoch=0, next=2))
    with pytest.raises(CorruptionError, match="without a group name"):
        decode(key[:2] + b"\0\0" + key[5:], value)
