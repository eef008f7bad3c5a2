"""Offsets committed within transactions (TxnOffsetCommit): pending until the transaction ends.

They are stored immediately, in records that belong to the transaction, and take effect with the
commit marker in the same partition. The checks are those of other commits, except that a producer
need not name its member id.
"""

from moldau.groups.events import (
    NO_MEMBER_ID,
    CommitTransactionOffsets,
    TransactionEnded,
    TransactionEnding,
)
from moldau.groups.group import Group
from moldau.groups.offsets import GroupOffsets
from moldau.groups.records import GroupsRecord
from moldau.groups.results import GroupState
from moldau.groups.runtime import Runtime
from moldau.groups.sync_handler import generation_error
from moldau.groups.write import Write
from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerId

ENDS_REMEMBERED_MAX = 10_000
NO_EPOCH_MIN = 1 << 15
"""Above every epoch: when an end was evicted, no epoch is known to be of a later transaction."""


class TransactionalOffsets:
    """Handles CommitTransactionOffsets, TransactionEnding and TransactionEnded."""

    def __init__(self, runtime: Runtime, offsets: GroupOffsets) -> None:
        self.runtime = runtime
        self.offsets = offsets
        self.guard = 0
        """Number of ended transactions, of all producers."""
        self._ends: dict[ProducerId, tuple[int, int]] = {}
        """Per producer: the guard at its last end, and the first epoch of the next transaction. The
        oldest are evicted; `_evicted` is the guard of the last of them."""
        self._evicted = 0
        self._groups: dict[ProducerId, dict[str, None]] = {}
        """Groups with pending offsets, by producer."""

    # ---- loading

    def replay(self, producer_id: ProducerId, record: GroupsRecord) -> None:
        group = self.runtime.group(record.group_id)
        group.apply_pending(producer_id, record)
        self.stored(group, producer_id)
        self.runtime.forget_if_empty(group)

    # ---- commits

    def commit(self, now: float, event: CommitTransactionOffsets) -> None:
        error = self.commit_error(now, self.runtime.groups.get(event.group_id), event)
        if error is ErrorCode.NONE and not self.runtime.has_room_for(event.group_id):
            error = ErrorCode.GROUP_MAX_SIZE_REACHED
        if error is not ErrorCode.NONE:
            self.offsets.reply_to_commit(event, error)
            return
        group = self.runtime.group(event.group_id)
        self.runtime.submit(now, group, TransactionalCommit(self, group, event))

    def commit_error(
        self, now: float, group: Group | None, event: CommitTransactionOffsets
    ) -> ErrorCode:
        ended, next_epoch_min = self._ends.get(event.producer_id, (self._evicted, NO_EPOCH_MIN))
        if ended > event.guard and event.producer_epoch < next_epoch_min:
            # It would be stored after the end marker of its transaction.
            return ErrorCode.INVALID_TXN_STATE
        is_member = event.generation >= 0 or (
            event.member_id != NO_MEMBER_ID or event.instance_id is not None
        )
        if group is None or group.state is GroupState.DEAD:
            return ErrorCode.ILLEGAL_GENERATION if event.generation >= 0 else ErrorCode.NONE
        if not is_member or (group.is_empty and event.generation < 0):
            return ErrorCode.NONE
        if group.has_consumers:
            error = group.consumer_error(event.member_id, event.instance_id, event.generation)
            # TxnOffsetCommit has no STALE_MEMBER_EPOCH: it would be fatal for the client.
            is_stale = error is ErrorCode.STALE_MEMBER_EPOCH
            return ErrorCode.ILLEGAL_GENERATION if is_stale else error
        error = generation_error(group, event.member_id, event.instance_id, event.generation)
        if error is ErrorCode.NONE:
            self.offsets.rebalance.renew_session(now, group, group.members[event.member_id])
        return error

    def stored(self, group: Group, producer_id: ProducerId) -> None:
        if producer_id in group.pending_offsets:
            self._groups.setdefault(producer_id, {})[group.group_id] = None

    # ---- the end

    def ends(self, event: TransactionEnding) -> None:
        self.guard += 1
        self._ends.pop(event.producer_id, None)
        self._ends[event.producer_id] = (self.guard, event.next_epoch_min)
        if len(self._ends) > ENDS_REMEMBERED_MAX:
            oldest = next(iter(self._ends))
            self._evicted = self._ends.pop(oldest)[0]

    def ended(self, event: TransactionEnded) -> None:
        for group_id in self._groups.pop(event.producer_id, {}):
            group = self.runtime.groups.get(group_id)
            if group is not None:
                group.end_transaction(event.producer_id, is_commit=event.is_commit)
                self.runtime.forget_if_empty(group)


class TransactionalCommit(Write):
    __slots__ = ("_event", "_group", "_offsets", "producer")

    def __init__(
        self, offsets: TransactionalOffsets, group: Group, event: CommitTransactionOffsets
    ) -> None:
        self._offsets = offsets
        self._group = group
        self._event = event
        self.producer = (event.producer_id, event.producer_epoch)

    def decide(self, now: float) -> list[GroupsRecord]:
        event = self._event
        error = self._offsets.commit_error(now, self._group, event)
        records: list[GroupsRecord] = []
        if error is ErrorCode.NONE:
            records = self._offsets.offsets.records(self._group, event.offsets)
        if not records:
            self._offsets.offsets.reply_to_commit(event, error)
        return records

    def committed(self, now: float) -> None:
        self._offsets.stored(self._group, self._event.producer_id)
        self._offsets.offsets.reply_to_commit(self._event, ErrorCode.NONE)

    def failed(self, now: float, error: ErrorCode) -> None:
        self._offsets.offsets.commit_failed(self._event, error)
