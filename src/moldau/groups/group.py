"""Owns the state of one group: its members and generation, its offsets, and what of it is stored.

Two kinds of state. Durable: `offsets` and `stored`, changed only by `apply`, with records that are
committed. Volatile: members, state and requests that wait; lost with the coordinator, and rebuilt
from `stored` when another one loads. Rules of the protocol are elsewhere; here are the questions
they ask.
"""

from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from moldau.groups.consumer.state import ConsumerState
from moldau.groups.events import Join
from moldau.groups.records import (
    GroupRecord,
    GroupsRecord,
    OffsetRecord,
    StoredGroup,
    StoredMember,
)
from moldau.groups.results import CommittedOffset, GroupState, JoinedMember
from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerId, TimestampMs, TopicPartition

if TYPE_CHECKING:
    from moldau.groups.runtime import Write

CONSUMER_PROTOCOL_TYPE = "consumer"


class PendingOffset(NamedTuple):
    """An offset that counts once a transaction is committed."""

    value: CommittedOffset
    number: int
    """Its place in the order of the log."""


class Member:
    """A member of a group. `join_request` and `sync_request` are the requests it waits with."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_request",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_received",
        "sync_request",
    )

    def __init__(
        self,
        *,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: tuple[tuple[str, bytes], ...],
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = b""
        self.join_request: int | None = None
        self.sync_request: int | None = None
        self.sync_received = False
        self.is_new = False

    @classmethod
    def of(cls, event: Join, member_id: str) -> "Member":
        """As it tells of itself."""
        return cls(
            member_id=member_id,
            instance_id=event.instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            session_timeout_ms=event.session_timeout_ms,
            protocols=event.protocols,
        )

    @property
    def waits(self) -> bool:
        """A member that waits for us cannot be blamed for its silence."""
        return self.join_request is not None or self.sync_request is not None

    def subscription(self, protocol_name: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol_name), b"")

    def stored(self, protocol_name: str | None, assignment: bytes) -> StoredMember:
        return StoredMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.subscription(protocol_name),
            assignment=assignment,
        )


class Group:
    """One group. Created Empty; forgotten by the coordinator when nothing of it is left."""

    __slots__ = (
        "consumer",
        "draft",
        "generation",
        "group_id",
        "initial_delay_left_s",
        "leader",
        "members",
        "new_member_added",
        "offsets",
        "pending",
        "pending_offsets",
        "protocol_name",
        "protocol_type",
        "state",
        "static",
        "stored",
        "stored_count",
        "waiting",
        "writing",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """instance id -> member id"""
        self.pending: dict[str, None] = {}
        """Ids given out with MEMBER_ID_REQUIRED whose owners have not joined yet; ordered."""
        self.initial_delay_left_s: float | None = None
        """Not None during the first join phase of an empty group: how often it may be extended."""
        self.new_member_added = False
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        self.pending_offsets: dict[ProducerId, dict[TopicPartition, PendingOffset]] = {}
        """Of transactions that are open, by their producer."""
        self.stored_count = 0
        self.stored: StoredGroup | None = None
        self.consumer: ConsumerState | None = None
        """Of a group of the next-generation protocol: durable, like `stored`, instead of it."""
        self.draft: ConsumerState | None = None
        """`consumer` as it will be when the write under way is committed."""
        self.writing: int | None = None
        """Token of the one write under way."""
        self.waiting: deque[Write] = deque()

    def apply(self, record: GroupsRecord) -> None:
        """A committed record; the only change of durable state."""
        if isinstance(record, OffsetRecord):
            self.stored_count += 1
            if self.pending_offsets:
                self._supersede(record.partition, self.stored_count)
            if record.value is None:
                self.offsets.pop(record.partition, None)
            else:
                self.offsets[record.partition] = record.value
        elif isinstance(record, GroupRecord):
            self.stored = record.value
        else:
            if self.consumer is None:
                self.consumer = ConsumerState()
            self.consumer.apply(record)
            if self.consumer.is_gone:
                self.consumer = None

    def apply_pending(self, producer_id: ProducerId, record: GroupsRecord) -> None:
        """A committed record within a transaction, which itself is open."""
        if isinstance(record, OffsetRecord) and record.value is not None:
            self.stored_count += 1
            pending = self.pending_offsets.setdefault(producer_id, {})
            pending[record.partition] = PendingOffset(record.value, self.stored_count)

    def end_transaction(self, producer_id: ProducerId, *, is_commit: bool) -> None:
        """The end is in the log. An offset that was stored after a pending one has replaced it."""
        ended = self.pending_offsets.pop(producer_id, {})
        if is_commit:
            for partition, (value, number) in ended.items():
                self._supersede(partition, number)
                self.offsets[partition] = value

    def _supersede(self, partition: TopicPartition, number: int) -> None:
        """Compaction keeps only the last record of a key, so an older one can never count."""
        for producer_id, pending in list(self.pending_offsets.items()):
            found = pending.get(partition)
            if found is not None and found.number < number:
                del pending[partition]
                if not pending:
                    del self.pending_offsets[producer_id]

    @property
    def pending_partitions(self) -> frozenset[TopicPartition]:
        """Those for which a transaction holds an offset."""
        return frozenset(
            partition for pending in self.pending_offsets.values() for partition in pending
        )

    def restore(self) -> None:
        """Members and generation as they are stored: after loading, and when a group becomes a
        classic one again."""
        if self.stored is None:
            return
        self.protocol_type = self.stored.protocol_type or None
        self.generation = self.stored.generation
        if not self.stored.members:
            return
        self.protocol_name = self.stored.protocol_name
        self.leader = self.stored.leader
        self.state = GroupState.STABLE
        for stored in self.stored.members:
            member = Member(
                member_id=stored.member_id,
                instance_id=stored.instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                rebalance_timeout_ms=stored.rebalance_timeout_ms,
                session_timeout_ms=stored.session_timeout_ms,
                protocols=((self.protocol_name or "", stored.subscription),),
            )
            member.assignment = stored.assignment
            member.sync_received = True
            self.add(member)
        if self.leader not in self.members:
            self.leader = next(iter(self.members))

    def snapshot(self, now_ms: TimestampMs, members: Iterable[StoredMember]) -> StoredGroup:
        stored = tuple(members)
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol_name=self.protocol_name if stored else None,
            leader=self.leader if stored else None,
            state_timestamp=now_ms,
            members=stored,
        )

    @property
    def forgettable(self) -> bool:
        return (
            self.state is GroupState.EMPTY
            and not self.pending
            and not self.offsets
            and not self.pending_offsets
            and self.stored is None
            and self.consumer is None
            and self.writing is None
            and not self.waiting
        )

    @property
    def is_empty(self) -> bool:
        """No members, of whichever protocol, and not being deleted."""
        return self.state is GroupState.EMPTY and not self.has_consumers

    @property
    def has_consumers(self) -> bool:
        return self.consumer is not None and bool(self.consumer.members)

    @property
    def rebalance_timeout_s(self) -> float:
        longest = max((m.rebalance_timeout_ms for m in self.members.values()), default=0)
        return longest / 1000

    @property
    def all_joined(self) -> bool:
        return not self.pending and all(
            member.join_request is not None for member in self.members.values()
        )

    def add(self, member: Member) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.pending.pop(member.member_id, None)

    def remove(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None and (
            self.static.get(member.instance_id) == member.member_id
        ):
            del self.static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def clear(self) -> None:
        """No classic group any more: nothing is left of its members and generation."""
        self.members.clear()
        self.static.clear()
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = self.protocol_name = self.leader = None
        self.initial_delay_left_s = None
        self.new_member_added = False

    def rename(self, member: Member, member_id: str) -> None:
        """A static member came back under a new id; it keeps its place and its leadership."""
        led = self.leader == member.member_id
        del self.members[member.member_id]
        member.member_id = member_id
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member_id
        if led:
            self.leader = member_id

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Is this a member, and the one that it says it is?"""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return ErrorCode.NONE if current == member_id else ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def consumer_error(self, member_id: str, instance_id: str | None, epoch: int) -> ErrorCode:
        """Is this a member whose broker assigns, and in the epoch that it says?"""
        if self.consumer is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self.consumer.member_error(member_id, instance_id)
        if error is ErrorCode.NONE and epoch != self.consumer.current(member_id).epoch:
            is_classic = self.consumer.members[member_id].classic is not None
            return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
        return error

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Could a member that speaks these protocols work with the others?"""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        common = set(self.common_protocols())
        return self.protocol_type == protocol_type and any(name in common for name, _ in protocols)

    def common_protocols(self) -> list[str]:
        """Protocols that all members speak, in the order of the first member."""
        members = iter(self.members.values())
        first = next(members, None)
        if first is None:
            return []
        names = list(dict.fromkeys(name for name, _ in first.protocols))
        for member in members:
            spoken = {name for name, _ in member.protocols}
            names = [name for name in names if name in spoken]
        return names

    def vote(self) -> str | None:
        """Each member votes for the first common protocol on its list; the first of equals wins."""
        common = self.common_protocols()
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes.update([name for name, _ in member.protocols if name in common][:1])
        return max(common, key=lambda name: votes[name], default=None)

    def roster(self) -> tuple[JoinedMember, ...]:
        """What the leader is told about the members."""
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                subscription=member.subscription(self.protocol_name),
            )
            for member in self.members.values()
        )
