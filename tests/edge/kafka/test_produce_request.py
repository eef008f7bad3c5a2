"""A produce request that is read at once is what the codec decodes, and all others are decoded."""

import hashlib
import random

import pytest
from chunks import joined

from moldau.edge.kafka import produce_request
from moldau.edge.kafka.pending_produce import TOPIC_IDS_FROM
from moldau.edge.kafka.produce_request import KnownProduce, learn, read_single
from moldau.model.errors import PeerProtocolError
from moldau.wire.fields import ZERO_UUID
from moldau.wire.messages.produce import ProducePartition, ProduceRequest, ProduceTopic

VERSIONS = range(3, 14)
HEADER = b"a header, of any size"


def id_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:16]


def request(
    *topics: str, acks: int = 1, index: int = 5, records: bytes | None = b"r" * 70
) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=1500,
        topics=[
            ProduceTopic(
                name=name,
                topic_id=id_of(name),
                partitions=[ProducePartition(index=index, records=records)],
            )
            for name in topics
        ],
    )


def as_decoded(made: ProduceRequest, version: int) -> ProduceRequest:
    """Removes what this version does not send: the ids of topics, or their names. Changes its
    argument."""
    for topic in made.topics:
        if version < TOPIC_IDS_FROM:
            topic.topic_id = ZERO_UUID
        else:
            topic.name = ""
    return made


def framed(made: ProduceRequest, version: int) -> bytes:
    return HEADER + joined(made.encode(version))


def as_request(known: KnownProduce) -> ProduceRequest:
    made = request(known.topic)
    made.topics[0].topic_id = known.topic_id
    return made


def teach(name: str, version: int, acks: int = 1, index: int = 5) -> KnownProduce:
    (topic,) = as_decoded(request(name), version).topics
    known = KnownProduce(acks, 1500, topic.name, topic.topic_id, index)
    learn(known, version)
    return known


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 70, 126, 127, 128, 20_000])
@pytest.mark.parametrize("name", ["t", "t" * 126])
def test_it_is_what_the_codec_decodes(version: int, size: int, name: str) -> None:
    records = random.Random(size).randbytes(size)
    frame = memoryview(framed(request(name, records=records), version))
    assert read_single(frame, version, len(HEADER)) is None, "nothing like it was decoded"
    known = teach(name, version)
    single = read_single(frame, version, len(HEADER))
    decoded = ProduceRequest.decode(frame, version, len(HEADER))
    assert single is not None
    assert single.known is known
    assert known.is_learned
    assert decoded == as_decoded(request(name, records=bytes(single.records)), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_topic_has_requests_of_its_own(version: int) -> None:
    for known in (teach("t", version), teach("u", version)):
        frame = memoryview(framed(as_request(known), version))
        single = read_single(frame, version, len(HEADER))
        assert single is not None
        assert single.known is known


@pytest.mark.parametrize("version", VERSIONS)
def test_another_request_is_decoded(version: int) -> None:
    teach("t", version)
    others = [
        request("u"),
        request("tt"),
        request("t", acks=-1),
        request("t", index=6),
        request("t", records=None),
        request("t", "t"),
        request(),
        request("t" * 249),
    ]
    with_id = request("t")
    with_id.transactional_id = "x"
    later = request("t")
    later.timeout_ms = 1501
    for other in (*others, with_id, later):
        assert read_single(memoryview(framed(other, version)), version, len(HEADER)) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_that_is_not_whole_or_has_more_is_decoded(version: int) -> None:
    teach("t", version)
    whole = framed(request("t"), version)
    for size in range(len(HEADER), len(whole)):
        assert read_single(memoryview(whole[:size]), version, len(HEADER)) is None
    assert read_single(memoryview(whole + b"\0"), version, len(HEADER)) is None


@pytest.mark.parametrize("version", range(9, 14))
def test_tagged_fields_are_decoded(version: int) -> None:
    teach("t", version)
    whole = framed(request("t"), version)
    for at in (-1, -2, -3):
        tagged = bytearray(whole)
        tagged[at] = 1
        assert read_single(memoryview(tagged), version, len(HEADER)) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_changed_bytes_mean_the_same_as_decoded_or_are_decoded(version: int) -> None:
    rng = random.Random(version)
    teach("t", version)
    whole = framed(request("t", records=b"r" * 9), version)
    found = 0
    for _ in range(3000):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 2)):
            changed[rng.randrange(len(HEADER), len(whole))] = rng.choice((0, 1, 2, 127, 128, 255))
        frame = memoryview(changed)
        try:
            single = read_single(frame, version, len(HEADER))
        except PeerProtocolError:
            with pytest.raises(PeerProtocolError):
                ProduceRequest.decode(frame, version, len(HEADER))
            continue
        if single is not None:
            found += 1
            decoded = ProduceRequest.decode(frame, version, len(HEADER))
            assert decoded == as_decoded(request("t", records=bytes(single.records)), version)
    assert found


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_request, "_KNOWN_MAX", 3)

    def known(index: int) -> bool:
        frame = memoryview(framed(request("t", index=index), 9))
        return read_single(frame, 9, len(HEADER)) is not None

    for index in range(5):
        teach("t", 9, index=index)
    # More than there is room for do not drive each other out.
    assert [known(index) for index in range(5)] == [True, True, True, False, False]
    teach("t", 9, index=5)
    # But what is in use changes.
    assert [known(index) for index in range(6)] == [False] * 5 + [True]
    assert len(produce_request._learned) == len(produce_request._by_version[9]) == 1


def test_a_name_that_takes_two_bytes_for_its_length_takes_no_room() -> None:
    for version, name, is_learned in (
        (9, "n" * 126, True),
        (9, "n" * 127, False),
        (8, "n" * 127, True),
    ):
        assert teach(name, version).is_learned == is_learned
        frame = memoryview(framed(request(name), version))
        assert (read_single(frame, version, len(HEADER)) is not None) == is_learned


def test_another_encoding_is_learned_once() -> None:
    known = teach("t", 9)
    again = teach("t", 9)
    assert known.is_learned
    assert not again.is_learned
