"""Commands as bytes: what one broker asks is what the other one decides."""

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from security_world import acl_filters, acls, credential, credentials

from moldau.metadata.command_codec import decode_command, encode_command
from moldau.metadata.commands import (
    Command,
    ConfigChange,
    ConfigOperation,
    CreateCluster,
    CreateJoinToken,
    CreateTopic,
    DrainBroker,
    PutScramCredentials,
    RegisterBroker,
)
from moldau.metadata.image import Endpoint
from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, TopicId
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramMechanism

KINDS = typing.get_args(Command)

text = st.text(max_size=20)
numbers = st.integers(-(2**31), 2**31 - 1)
configs = st.dictionaries(text, st.none() | text, max_size=3)
endpoints = st.none() | st.builds(Endpoint, text, st.integers(0, 65535))
change = st.builds(
    ConfigChange, name=text, operation=st.sampled_from(ConfigOperation), value=st.none() | text
)
queue_groups = st.builds(
    QueueGroup,
    name=text,
    topics=st.lists(text, max_size=3).map(tuple),
    settings=st.builds(QueueSettings, dead_letter_topic=text, visibility_ms=numbers),
)
# By field: the same name means the same thing in every command.
FIELDS: dict[str, st.SearchStrategy[object]] = {
    "cluster_id": text,
    "id": st.none() | numbers,
    "host": text,
    "port": numbers,
    "rack": st.none() | text,
    "incarnation": text,
    "process": text,
    "raft": endpoints,
    "http": endpoints,
    "feature_level_max": numbers,
    "broker_id": numbers,
    "metadata_members": st.lists(numbers, max_size=3),
    "level": numbers,
    "name": text,
    "topic_id": st.binary(min_size=16, max_size=16),
    "partitions": numbers,
    "replication_factor": numbers,
    "assignments": st.none(),
    "configs": configs,
    "internal": st.booleans(),
    "topic": text,
    "count": numbers,
    "partition": numbers,
    "replicas": st.none() | st.lists(numbers, max_size=3),
    "allow_replication_factor_change": st.booleans(),
    "desired_version": numbers,
    "broker_ids": st.lists(numbers, max_size=3),
    "voters": st.lists(numbers, max_size=3),
    "learners": st.lists(numbers, max_size=3),
    "changes": st.lists(change, max_size=3),
    "grpc": endpoints,
    "machine": st.none() | text,
    "lacking": st.lists(numbers, max_size=3).map(tuple),
    "listeners": st.lists(st.tuples(text, st.builds(Endpoint, text, numbers)), max_size=3).map(
        tuple
    ),
    "topics": st.lists(text, max_size=3),
    "visibility_ms": st.none() | numbers,
    "attempts_max": st.none() | numbers,
    "backoff_ms": st.none() | numbers,
    "backoff_ms_max": st.none() | numbers,
    "dead_letter_topic": st.none() | text,
    "starts_at_end": st.booleans(),
    "expected": st.just(msgspec.UNSET) | st.none() | queue_groups,
    "join_token_id": text,
    "now_ms": numbers,
    "expires_ms": numbers,
    "hash": st.binary(max_size=32),
    "user": text,
    "mechanism": st.sampled_from(ScramMechanism),
    "credentials": st.dictionaries(st.sampled_from(ScramMechanism), credentials),
    "replace_all": st.booleans(),
    "acls": st.lists(acls, max_size=3),
    "filters": st.lists(acl_filters, max_size=3),
    "entity": st.builds(QuotaEntity, st.none() | text, st.none() | text),
    "limits": st.dictionaries(text, st.none() | st.floats(allow_nan=False), max_size=3),
}
SPECIAL: dict[tuple[str, str], st.SearchStrategy[object]] = {
    ("CreateTopic", "assignments"): st.none()
    | st.dictionaries(numbers, st.lists(numbers, max_size=3), max_size=3),
    ("CreatePartitions", "assignments"): st.none()
    | st.lists(st.lists(numbers, max_size=3), max_size=3),
    ("DeleteTopic", "name"): st.none() | text,
    ("DeleteTopic", "topic_id"): st.none() | FIELDS["topic_id"],
    ("CreateJoinToken", "id"): text,
    ("DeleteJoinToken", "id"): text,
}


def commands(kind: type) -> st.SearchStrategy[Command]:
    names = [field.name for field in msgspec.structs.fields(kind)]
    return st.builds(
        kind, **{name: SPECIAL.get((kind.__name__, name), FIELDS[name]) for name in names}
    )


@given(st.data())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_command_comes_out_as_it_went_in(kind: type, data: st.DataObject) -> None:
    command = data.draw(commands(kind))
    found = decode_command(encode_command(command))
    assert type(found) is kind
    assert found == command


def test_what_is_no_plain_number_keeps_its_type() -> None:
    register = RegisterBroker(
        id=None, host="h", port=1, incarnation="i", raft=Endpoint("r", 2), http=None
    )
    found = decode_command(encode_command(register))
    assert isinstance(found, RegisterBroker)
    assert isinstance(found.raft, Endpoint)
    create = CreateTopic(name="t", topic_id=TopicId(bytes(16)), assignments={0: [1, 2]})
    decoded = decode_command(encode_command(create))
    assert isinstance(decoded, CreateTopic)
    assert decoded.assignments == {0: [1, 2]}


def test_a_command_of_a_later_version_is_refused_by_its_name() -> None:
    payload = msgspec.msgpack.encode(("BalanceDisks", {"level": 9}))
    with pytest.raises(RefusedError, match="unknown command 'BalanceDisks'") as caught:
        decode_command(payload)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_field_of_a_later_version_is_passed_over() -> None:
    payload = msgspec.msgpack.encode(("DrainBroker", {"broker_id": 3, "reason": "worn out"}))
    assert decode_command(payload) == DrainBroker(broker_id=BrokerId(3))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode("DrainBroker"),
        msgspec.msgpack.encode(("DrainBroker",)),
        msgspec.msgpack.encode(("DrainBroker", {})),
        msgspec.msgpack.encode(("DrainBroker", {"broker_id": "three"})),
        msgspec.msgpack.encode(("DrainBroker", {"broker_id": 3}))[:-1],
        msgspec.msgpack.encode(("DrainBroker", {"broker_id": 3})) + b"\x00",
        msgspec.msgpack.encode((1, 2)),
    ],
)
def test_what_is_no_command_is_refused(payload: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        decode_command(payload)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@given(st.binary(max_size=100))
def test_no_bytes_do_worse_than_being_refused(payload: bytes) -> None:
    try:
        command = decode_command(payload)
    except RefusedError:
        return
    assert isinstance(command, KINDS)


def test_a_kind_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(RefusedError):
        decode_command(b"\x92\xa1\xff\x80")


def test_a_name_that_is_no_utf8_is_refused() -> None:
    payload = encode_command(CreateCluster(cluster_id="abc")).replace(b"abc", b"a\xffc")
    with pytest.raises(RefusedError) as refused:
        decode_command(payload)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_a_command_shows_no_secret_when_it_is_logged() -> None:
    put = PutScramCredentials(user="alice", credentials={ScramMechanism.SHA_256: credential(65)})
    create = CreateJoinToken(id="t", hash=b"A" * 32, expires_ms=1, now_ms=0)
    for command in (put, create):
        assert "AAAA" in encode_command(command).decode("latin-1")
        for shown in (repr(command), str(command), f"{command}"):
            assert "AAAA" not in shown
