"""Makes one replica the only voter of its group, once a majority of the voters is lost for good.

Consensus cannot do that: without a majority nothing is committed, a change of voters neither. So it
is forced on the files of one replica, the survivor, while its group does not run. The log gets one
entry more: the members, with the survivor alone, in an epoch that nobody has reached. That entry is
the whole operation. It is in the log or it is not, so a crash leaves the old members or the new
ones, and the epoch needs no vote: one that is in a log counts as entered (raft/state.py).

When the group runs again, the survivor elects itself, and commits its log: also what was never
committed, since nobody can say which entries these are. Entries that only lost voters had are lost.

Nothing here keeps the lost voters from coming back as a majority of the old members. The caller
must have excluded that before, for good (docs/decisions/0065-lost-majorities-are-replaced.md).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from moldau.log.interface import ControlKind, PartitionLog
from moldau.model.errors import ErrorCode, RefusedError, StorageError
from moldau.model.ids import FIRST_LOG, BrokerId, Epoch, LogId, Offset, RaftIndex
from moldau.raft.membership import Members, encode_members
from moldau.replica.log_view import GroupLog

EPOCH_DISTANCE: Final = 100_000
"""From the highest epoch that is known to the forced one.

The lost voters may have held elections that nobody who is left has heard of, one epoch each; and
clients ignore a leader of an older epoch than they know. It has room for a day of one election per
second, and an epoch has room for twenty thousand of it.
"""


class Survivor(NamedTuple):
    """What the files of one replica say."""

    broker: BrokerId
    log_id: LogId
    members: Members
    """The last in its log, committed or not."""
    voted_epoch: Epoch
    last_epoch: Epoch
    end_index: RaftIndex
    start_offset: Offset
    end_offset: Offset

    @property
    def is_voter(self) -> bool:
        """Whether the group counts on this replica with this log. One that was still being filled,
        or was moved away, may lack any number of committed entries."""
        return self.members.is_voter(self.broker, self.log_id)

    @property
    def known_epoch(self) -> Epoch:
        """The highest epoch that this replica has heard of."""
        return max(self.voted_epoch, self.last_epoch)

    @property
    def position(self) -> tuple[Epoch, RaftIndex]:
        """As elections compare logs: the larger one has all that the smaller one knows to be
        committed."""
        return self.last_epoch, self.end_index


def survey(log: PartitionLog, *, me: BrokerId, voted_epoch: Epoch, initial: Members) -> Survivor:
    """`voted_epoch` is from the vote journal; `initial` are the members of a log without any."""
    _, members = GroupLog(log, initial).members(log.end_index)
    return Survivor(
        broker=me,
        log_id=log.log_id,
        members=members,
        voted_epoch=voted_epoch,
        last_epoch=log.last_epoch,
        end_index=log.end_index,
        start_offset=log.start_offset,
        end_offset=log.end_offset,
    )


def forced_epoch(known: Iterable[Epoch]) -> Epoch:
    """The epoch for a survivor, from all epochs of the group that anybody has heard of."""
    return Epoch(max(known) + EPOCH_DISTANCE)


def make_only_voter(
    log: PartitionLog,
    *,
    me: BrokerId,
    voted_epoch: Epoch,
    initial: Members,
    epoch: Epoch,
    needs_voter: bool = True,
) -> bool:
    """Make this log that of the only voter, from `epoch` on. Durable when it returns.

    False, with nothing changed, if the log has reached that epoch: it was done before, and what the
    group has committed since stays. So it can be repeated with the same epoch after any crash.

    The log is open and no group runs over it. `needs_voter`: False if no voter that is left has
    more than this log, so that nothing is lost by taking that of a learner. Raises RefusedError if
    this replica is not a voter; DiskFullError, with nothing changed; StorageError.
    """
    if log.last_epoch >= epoch:
        return False
    survivor = survey(log, me=me, voted_epoch=voted_epoch, initial=initial)
    if needs_voter and not survivor.is_voter:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"broker {me} is not a voter with the log that it has: committed records may be "
            "missing in it",
        )
    logs = ((me, log.log_id),) if log.log_id != FIRST_LOG else ()
    payload = encode_members(Members((me,), (), logs))
    # Its own vote in a higher epoch was for others: they are not to be taken for voters of ours.
    log.append_control(max(epoch, Epoch(voted_epoch + 1)), ControlKind.MEMBERSHIP, payload)
    _flush(log)
    return True


def _flush(log: PartitionLog) -> None:
    task = log.begin_flush()
    try:
        if task is not None:
            task.run()
            log.end_flush(task)
    except OSError as error:
        raise StorageError(f"cannot store the members: {error}") from error
    if log.flushed_index < log.end_index:
        raise StorageError("the members are not on the disk after a flush")
