"""Mistakes of those who speak the protocols of groups: each is refused with its code."""

from collections.abc import Callable
from typing import Any, Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatOwnedTopic,
)
from moldau.wire.messages.heartbeat import HeartbeatRequest
from moldau.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.wire.messages.leave_group import LeaveGroupMember, LeaveGroupRequest
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.wire.messages.sync_group import SyncGroupRequest
from moldau.wire.schema import Request
from sim.clients.wire import COORDINATOR_GONE, Kafka
from sim.scene import Scene

E = ErrorCode
_GROUPS: Final = 0
_AT_A_TIME: Final = 6
_BAD_PATTERNS: Final = (
    "log)",
    "(log",
    "[log",
    "*log",
    "lo+g**",
    "l{3,2}",
    "l{1,9999}",
    "(?<=l)og",
    "(?z)log",
    "lo\\",
    "lo\\xzz",
    "\\kog",
    "[z-a]",
    "[[:nothing:]]",
    "(" * 60 + ")" * 60,
    "x" * 3_000,
    "((((((l{9}){9}){9}){9}){9}){9}){9}",
)
Case = tuple[Request, int, Callable[[Any], int], E]


def _heartbeat(group: str, **named: Any) -> ConsumerGroupHeartbeatRequest:
    """As if it joined."""
    fields: dict[str, Any] = {
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 5000,
        "subscribed_topic_names": ["log"],
        "topic_partitions": [],
    }
    return ConsumerGroupHeartbeatRequest(group_id=group, **{**fields, **named})


def _join(group: str, **named: Any) -> JoinGroupRequest:
    fields: dict[str, Any] = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 5_000,
        "member_id": "nobody",
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=b"")],
    }
    return JoinGroupRequest(group_id=group, **{**fields, **named})


def _whole(answer: Any) -> int:
    return int(answer.error_code)


def _left(answer: Any) -> int:
    return int(answer.error_code or answer.members[0].error_code)


def _committed(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def _commit(group: str, member: str, generation: int, metadata: str) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=metadata
    )
    topic = OffsetCommitRequestTopic(name="log", partitions=[partition])
    return OffsetCommitRequest(
        group_id=group,
        member_id=member,
        generation_id_or_member_epoch=generation,
        topics=[topic],
    )


def _cases(group: str) -> list[Case]:
    """Of a group that there is not."""
    owned = [HeartbeatOwnedTopic(topic_id=b"7" * 16, partitions=[0])]
    long = "x" * 32_700
    heartbeats = (
        _heartbeat(group, member_epoch=-5),
        _heartbeat(group, member_epoch=-2),
        _heartbeat(group, member_id="", member_epoch=3),
        _heartbeat(group, instance_id=""),
        _heartbeat(group, rack_id=""),
        _heartbeat(group, rebalance_timeout_ms=-1),
        _heartbeat(group, topic_partitions=None),
        _heartbeat(group, topic_partitions=owned),
        _heartbeat(group, subscribed_topic_names=None),
        _heartbeat(group, instance_id=long),
        _heartbeat(group, subscribed_topic_names=["log"] * 10_001),
    )
    leaving = [LeaveGroupMember(member_id="nobody", group_instance_id=None)]
    sync = SyncGroupRequest(group_id=group, generation_id=1, member_id="nobody", assignments=[])
    return [
        *((request, 1, _whole, E.INVALID_REQUEST) for request in heartbeats),
        *(
            (
                _heartbeat(group, subscribed_topic_regex=text),
                1,
                _whole,
                E.INVALID_REGULAR_EXPRESSION,
            )
            for text in _BAD_PATTERNS
        ),
        (_heartbeat(group, server_assignor="nobody"), 0, _whole, E.UNSUPPORTED_ASSIGNOR),
        (_heartbeat(group, member_epoch=5, topic_partitions=None), 0, _whole, E.UNKNOWN_MEMBER_ID),
        (_heartbeat(""), 0, _whole, E.INVALID_GROUP_ID),
        (_join(""), 5, _whole, E.INVALID_GROUP_ID),
        (_join(group), 5, _whole, E.UNKNOWN_MEMBER_ID),
        (_join(group, session_timeout_ms=1), 5, _whole, E.INVALID_SESSION_TIMEOUT),
        (_join(group, member_id="", group_instance_id=long), 5, _whole, E.INVALID_REQUEST),
        (
            _join(group, member_id="", protocols=[]),
            5,
            _whole,
            E.INCONSISTENT_GROUP_PROTOCOL,
        ),
        (sync, 3, _whole, E.UNKNOWN_MEMBER_ID),
        (
            HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody"),
            3,
            _whole,
            E.UNKNOWN_MEMBER_ID,
        ),
        (LeaveGroupRequest(group_id=group, members=leaving), 3, _left, E.UNKNOWN_MEMBER_ID),
        (_commit(group, "nobody", 3, ""), 8, _committed, E.ILLEGAL_GENERATION),
        (_commit(group, "", -1, "x" * 5_000), 8, _committed, E.OFFSET_METADATA_TOO_LARGE),
    ]


class GroupWrong:
    """Some mistakes at a time, about a group that nobody is in."""

    def __init__(self, scene: Scene, kafka: Kafka, group: str) -> None:
        self._scene = scene
        self._kafka = kafka
        self._group = f"{group}-nobody"

    async def do(self) -> None:
        """Raises Lost."""
        cases = _cases(self._group)
        for request, version, code_of, expected in self._kafka.rng.sample(cases, _AT_A_TIME):
            answer = await self._kafka.ask_coordinator(
                _GROUPS, self._group, request, version=version
            )
            code = ErrorCode(code_of(answer))
            if code in COORDINATOR_GONE:
                self._kafka.forget_coordinator(_GROUPS, self._group)
                return
            if code is not expected:
                self._scene.violation(f"{request} was answered with {code.name}")
            self._scene.count("group mistakes")
