"""State of one group: its members and generation, its offsets, and its stored records.

Durable state: `offsets` and `stored`, changed only by `apply`, with committed records. Volatile:
members, state and waiting requests; lost with the coordinator, and rebuilt from `stored` when
another one loads. The protocol's rules are in the handlers (`join_handler`, `sync_handler`).
"""

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct, field

from moldau.groups.consumer.state import ConsumerState
from moldau.groups.events import Join
from moldau.groups.records import GroupRecord, GroupsRecord, OffsetRecord, StoredGroup, StoredMember
from moldau.groups.results import CommittedOffset, GroupState, JoinedMember
from moldau.groups.weights import PENDING_BYTES, group_weight, member_weight
from moldau.groups.write import Write
from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerId, TimestampMs, TopicPartition

CONSUMER_PROTOCOL_TYPE = "consumer"


class PendingOffset(NamedTuple):
    """An offset that takes effect when its transaction commits."""

    value: CommittedOffset
    number: int
    """Its position in log order."""


class Member(Struct, kw_only=True, eq=False):
    """A member of a group. `join_request` and `sync_request` are its waiting requests."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    join_request: int | None = None
    sync_request: int | None = None
    sync_received: bool = False
    is_new: bool = False
    weight: int = 0
    """Without the assignment; set by its group."""

    @classmethod
    def of(cls, event: Join, member_id: str) -> "Member":
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
        """A member with a waiting request sends no heartbeats: its session cannot expire."""
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


class Group(Struct, eq=False):
    """One group. Created Empty; dropped by the coordinator when it has no state left."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, Member] = {}
    static: dict[str, str] = {}
    """instance id -> member id"""
    pending: dict[str, None] = {}
    """Ids returned with MEMBER_ID_REQUIRED whose clients have not joined yet; ordered."""
    initial_delay_left_s: float | None = None
    """Set during the first join phase of an empty group: by how much it may be extended."""
    new_member_added: bool = False
    offsets: dict[TopicPartition, CommittedOffset] = {}
    pending_offsets: dict[ProducerId, dict[TopicPartition, PendingOffset]] = {}
    """Of open transactions, by producer."""
    stored_count: int = 0
    stored: StoredGroup | None = None
    consumer: ConsumerState | None = None
    """Of a consumer-protocol group: durable, instead of `stored`."""
    draft: ConsumerState | None = None
    """`consumer` as it will be when the write in flight is committed."""
    writing: int | None = None
    """Token of the write in flight; at most one."""
    waiting: deque[Write] = field(default_factory=deque)
    member_bytes: int = 0
    """What the members weigh, with their assignments."""
    counted_bytes: int = 0
    """`weight`, as it is counted in the memory of all groups."""

    def apply(self, record: GroupsRecord) -> None:
        """Apply a committed record; nothing else changes durable state."""
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
            if self.consumer.is_deleted:
                self.consumer = None

    def apply_pending(self, producer_id: ProducerId, record: GroupsRecord) -> None:
        """Apply a committed record of an open transaction."""
        if isinstance(record, OffsetRecord) and record.value is not None:
            self.stored_count += 1
            pending = self.pending_offsets.setdefault(producer_id, {})
            pending[record.partition] = PendingOffset(record.value, self.stored_count)

    def end_transaction(self, producer_id: ProducerId, *, is_commit: bool) -> None:
        """An offset that was stored after a pending one has replaced it."""
        ended = self.pending_offsets.pop(producer_id, {})
        if is_commit:
            for partition, (value, number) in ended.items():
                self._supersede(partition, number)
                self.offsets[partition] = value

    def _supersede(self, partition: TopicPartition, number: int) -> None:
        """Compaction keeps only the last record of a key, so older pending ones are dropped."""
        for producer_id, pending in list(self.pending_offsets.items()):
            found = pending.get(partition)
            if found is not None and found.number < number:
                del pending[partition]
                if not pending:
                    del self.pending_offsets[producer_id]

    @property
    def pending_partitions(self) -> frozenset[TopicPartition]:
        """Partitions with an offset in an open transaction."""
        return frozenset(
            partition for pending in self.pending_offsets.values() for partition in pending
        )

    def restore(self) -> None:
        """Rebuild members and generation from `stored`: after loading, and after a downgrade to
        the classic protocol."""
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
            self.add(
                Member(
                    member_id=stored.member_id,
                    instance_id=stored.instance_id,
                    client_id=stored.client_id,
                    client_host=stored.client_host,
                    rebalance_timeout_ms=stored.rebalance_timeout_ms,
                    session_timeout_ms=stored.session_timeout_ms,
                    protocols=((self.protocol_name or "", stored.subscription),),
                    assignment=stored.assignment,
                    sync_received=True,
                )
            )
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
    def has_no_state(self) -> bool:
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
    def weight(self) -> int:
        consumer = self.draft or self.consumer
        consumer_bytes = 0 if consumer is None else consumer.member_bytes
        pending_bytes = len(self.pending) * PENDING_BYTES
        return group_weight(self.group_id) + self.member_bytes + consumer_bytes + pending_bytes

    @property
    def is_empty(self) -> bool:
        """No members of either protocol, and not being deleted."""
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
        self.member_bytes += len(member.assignment)
        member.weight = 0
        self.weigh(member)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.pending.pop(member.member_id, None)

    def weigh(self, member: Member) -> None:
        """What the member sent has changed."""
        self.member_bytes -= member.weight
        texts = (member.instance_id, member.client_id, member.client_host)
        member.weight = member_weight(texts, member.protocols)
        self.member_bytes += member.weight

    def assign(self, member: Member, assignment: bytes) -> None:
        self.member_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def remove(self, member: Member) -> None:
        del self.members[member.member_id]
        self.member_bytes -= member.weight + len(member.assignment)
        if member.instance_id is not None and (
            self.static.get(member.instance_id) == member.member_id
        ):
            del self.static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def clear(self) -> None:
        """Drop members and generation: the group is no longer a classic one."""
        self.members.clear()
        self.member_bytes = 0
        self.static.clear()
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = self.protocol_name = self.leader = None
        self.initial_delay_left_s = None
        self.new_member_added = False

    def rename(self, member: Member, member_id: str) -> None:
        """A static member rejoined under a new id; it keeps its assignment and leadership."""
        led = self.leader == member.member_id
        del self.members[member.member_id]
        member.member_id = member_id
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member_id
        if led:
            self.leader = member_id

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if this is a member, and its instance id is not taken by another one."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return ErrorCode.NONE if current == member_id else ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def consumer_error(self, member_id: str, instance_id: str | None, epoch: int) -> ErrorCode:
        """NONE if this is a member of the consumer protocol, in this epoch."""
        if self.consumer is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self.consumer.member_error(member_id, instance_id)
        if error is ErrorCode.NONE and epoch != self.consumer.current(member_id).epoch:
            is_classic = self.consumer.members[member_id].classic is not None
            return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
        return error

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether these protocols have one in common with all members."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        common = set(self.common_protocols())
        return self.protocol_type == protocol_type and any(name in common for name, _ in protocols)

    def common_protocols(self) -> list[str]:
        """Protocols that all members support, in the order of the first member."""
        members = iter(self.members.values())
        first = next(members, None)
        if first is None:
            return []
        names = list(dict.fromkeys(name for name, _ in first.protocols))
        for member in members:
            supported = {name for name, _ in member.protocols}
            names = [name for name in names if name in supported]
        return names

    def vote(self) -> str | None:
        """Each member votes for its first common protocol; on a tie the first one wins."""
        common = self.common_protocols()
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes.update([name for name, _ in member.protocols if name in common][:1])
        return max(common, key=lambda name: votes[name], default=None)

    def roster(self) -> tuple[JoinedMember, ...]:
        """The member list for the leader's JoinGroup response."""
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                subscription=member.subscription(self.protocol_name),
            )
            for member in self.members.values()
        )
