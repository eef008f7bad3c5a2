"""What brokers send to each other after the handshake, and the handshake itself."""

from collections.abc import Iterator
from typing import Final

from fuzz.target import Target, check
from moldau.log.interface import ControlKind, LogStart
from moldau.model.errors import CorruptionError, PeerProtocolError, RefusedError
from moldau.model.ids import BrokerId, Epoch, LogId, Offset, PartitionIndex, RaftIndex, TopicId
from moldau.net.peers.handshake import (
    Hello,
    HelloResponse,
    decode_hello,
    decode_hello_response,
    encode_hello,
    encode_hello_response,
)
from moldau.queues import group_rpc_messages as rpc
from moldau.raft.membership import Members, decode_members, encode_members
from moldau.raft.messages import (
    AppendResponse,
    InstallSnapshot,
    Message,
    RaftHeartbeat,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from moldau.replica.peer_codec import (
    GroupKey,
    decode_frame,
    encode_append,
    encode_batches_head,
    encode_control,
    encode_message,
    encode_snapshot,
)
from moldau.replica.peer_heartbeat import Heartbeat, decode_heartbeat, encode_heartbeat
from moldau.testing.logs import make_batch

_GROUP: Final = GroupKey(TopicId(bytes(16)), PartitionIndex(0)).wire
_RPC: Final = (
    rpc.MemberHeartbeatRequest,
    rpc.MemberHeartbeatResponse,
    rpc.GroupCommitRequest,
    rpc.GroupOffsetsRequest,
    rpc.GroupMemberRef,
    rpc.GroupDescription,
)


def _read_raft(data: bytes) -> None:
    for envelope in decode_frame(memoryview(data)):
        check(envelope.entries_bytes >= 0, "entries of a negative size")
        envelope.kept()


def _read_heartbeat(data: bytes) -> None:
    found = decode_heartbeat(memoryview(data))
    again = decode_heartbeat(memoryview(encode_heartbeat(found)))
    check(again == found, "a heartbeat changes when it is encoded again")


def _read_handshake(data: bytes) -> None:
    if data[:1] == b"r":
        response = decode_hello_response(data[1:])
        again = decode_hello_response(encode_hello_response(response))
        check(again == response, "a response to a hello changes when it is encoded again")
        return
    hello = decode_hello(memoryview(data[1:]))
    again_hello = decode_hello(memoryview(encode_hello(hello)))
    check(again_hello == hello, "a hello changes when it is encoded again")


def _read_rpc(data: bytes) -> None:
    if data:
        kind = _RPC[data[0] % len(_RPC)]
        found = rpc.decode(data[1:], kind)
        check(rpc.decode(rpc.encode(found), kind) == found, "an RPC changes when it is encoded")


def _read_members(data: bytes) -> None:
    found = decode_members(data)
    check(decode_members(encode_members(found)) == found, "members change when they are stored")


def _raft_seeds() -> Iterator[tuple[str, bytes]]:
    epoch, index, log = Epoch(2), RaftIndex(5), LogId(3)
    messages: dict[str, Message] = {
        "appended": AppendResponse(epoch, True, index, index, index, epoch, log_id=log),
        "vote": VoteRequest(epoch, index, epoch, False, False, voter_log=log),
        "voted": VoteResponse(epoch, True, False),
        "heartbeat": RaftHeartbeat(epoch, index, 1),
        "timeout": TimeoutNow(epoch),
    }
    for name, message in messages.items():
        yield name, encode_message(_GROUP, message)
    members = Members((BrokerId(1), BrokerId(2)))
    start = LogStart(Offset(3), 2, epoch, encode_members(members))
    snapshot = InstallSnapshot(epoch, RaftIndex(5), epoch, members)
    yield "snapshot", encode_snapshot(_GROUP, snapshot, start, b"state")
    batch = make_batch(5, epoch=2)
    control = encode_control(ControlKind.NOOP, epoch, b"")
    entries = encode_batches_head(len(batch)) + batch + control
    yield "append", encode_append(_GROUP, epoch, index, epoch, index, len(entries)) + entries


def _rpc_seeds() -> Iterator[tuple[str, bytes]]:
    yield "reference", b"\x04" + rpc.encode(rpc.GroupMemberRef(group="g", member="m"))
    offsets = rpc.GroupOffsetsRequest(group="g", partitions=[("t", 0)])
    yield "offsets", b"\x03" + rpc.encode(offsets)
    described = rpc.MemberDescription(
        member="m", topics=("t",), is_queue=True, assigned=[], revoking=[]
    )
    yield (
        "description",
        b"\x05"
        + rpc.encode(
            rpc.GroupDescription(members=[described], classic_members=0, has_offsets=True)
        ),
    )


_HEARTBEAT: Final = Heartbeat(1, 2, 3, 4, 5, 6, ((_GROUP, Epoch(1)),), ((0, RaftIndex(2)),), ())


TARGETS: Final = [
    Target(
        name="peers-raft",
        about="Raft messages and the entries in them",
        run=_read_raft,
        allowed=(PeerProtocolError,),
        seeds=_raft_seeds,
    ),
    Target(
        name="peers-heartbeats",
        about="heartbeats between brokers",
        run=_read_heartbeat,
        allowed=(PeerProtocolError,),
        seeds=lambda: {"empty": encode_heartbeat(_HEARTBEAT)},
        bytes_max=512,
    ),
    Target(
        name="peers-handshake",
        about="hello and its response",
        run=_read_handshake,
        allowed=(PeerProtocolError,),
        seeds=lambda: {
            "hello": b"h" + encode_hello(Hello("c", BrokerId(2), "i", BrokerId(1))),
            "accepted": b"r" + encode_hello_response(HelloResponse("")),
            "refused": b"r" + encode_hello_response(HelloResponse("no")),
        },
        bytes_max=2048,
    ),
    Target(
        name="peers-rpc",
        about="requests of other brokers for groups",
        run=_read_rpc,
        allowed=(RefusedError,),
        seeds=_rpc_seeds,
        bytes_max=1024,
    ),
    Target(
        name="peers-members",
        about="members of a Raft group",
        run=_read_members,
        allowed=(CorruptionError,),
        seeds=lambda: {"two": encode_members(Members((BrokerId(1), BrokerId(2))))},
        bytes_max=512,
    ),
]
