"""The members of a group: voters and learners, their encoding, and which changes are safe.

A set of members takes effect as soon as it is in a broker's log, committed or not, and ends when
it is truncated. Majorities of two sets that differ by one voter always share a broker, so voters
change one at a time; learners do not count for majorities and change freely.

A voter is a broker with one log: a broker that lost its log has forgotten what it acknowledged, and
is not the voter that the majority counted on. So a log that is created later than its group has a
random id, and the entry that makes its broker a voter contains it.
"""

from typing import Final, NamedTuple

import msgspec

from moldau.model.errors import CorruptionError
from moldau.model.ids import FIRST_LOG, BrokerId, LogId
from moldau.model.malformed import MALFORMED
from moldau.raft.errors import RaftRejection

NO_BROKER: Final = BrokerId(-1)


class Members(NamedTuple):
    """Both in ascending order: nothing may depend on the order of a set."""

    voters: tuple[BrokerId, ...]
    learners: tuple[BrokerId, ...] = ()
    logs: tuple[tuple[BrokerId, LogId], ...] = ()
    """Voters whose log was created later than the group, and the ids of these logs."""

    @property
    def everyone(self) -> tuple[BrokerId, ...]:
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        """How many voters are a majority."""
        return len(self.voters) // 2 + 1

    def log_of(self, voter: BrokerId) -> LogId:
        """The log with which a broker is a voter."""
        for broker, log_id in self.logs:
            if broker == voter:
                return log_id
        return FIRST_LOG

    def is_voter(self, broker: BrokerId, log_id: LogId) -> bool:
        return broker in self.voters and self.log_of(broker) == log_id

    def has_same_brokers(self, other: "Members") -> bool:
        """Compares brokers, not their logs."""
        return self.voters == other.voters and self.learners == other.learners

    def with_learner(self, broker: BrokerId) -> "Members":
        """Also demotes a voter."""
        rest = self.without(broker)
        return rest._replace(learners=tuple(sorted((*rest.learners, broker))))

    def with_voter(self, broker: BrokerId) -> "Members":
        """Promotes a learner, with the log that it has."""
        rest = self.without(broker)
        return rest._replace(voters=tuple(sorted((*rest.voters, broker))))

    def without(self, broker: BrokerId) -> "Members":
        return Members(
            tuple(other for other in self.voters if other != broker),
            tuple(other for other in self.learners if other != broker),
            tuple(entry for entry in self.logs if entry[0] != broker),
        )


class _Stored(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    logs: tuple[tuple[int, int], ...] = ()
    """Missing in entries of versions without log ids."""


_decoder: Final = msgspec.msgpack.Decoder(_Stored)


def encode_members(members: Members) -> bytes:
    """The payload of a membership entry in the control journal."""
    return msgspec.msgpack.encode(members)


def decode_members(payload: bytes) -> Members:
    try:
        stored = _decoder.decode(payload)
    except MALFORMED as error:
        raise CorruptionError(f"membership entry: {error}") from error
    return Members(
        tuple(BrokerId(broker) for broker in stored.voters),
        tuple(BrokerId(broker) for broker in stored.learners),
        tuple((BrokerId(broker), LogId(log_id)) for broker, log_id in stored.logs),
    )


def check_change(old: Members, new: Members) -> None:
    """Raises RaftRejection unless majorities of both sets overlap and new voters were learners."""
    if list(new.voters) != sorted(set(new.voters)) or list(new.learners) != sorted(
        set(new.learners)
    ):
        raise RaftRejection(f"members must be sorted and unique: {new}")
    if not new.voters:
        raise RaftRejection("a group needs at least one voter")
    added = [broker for broker in new.voters if broker not in old.voters]
    removed = [broker for broker in old.voters if broker not in new.voters]
    if len(added) + len(removed) > 1:
        raise RaftRejection(f"voters must change one at a time, not {old.voters} to {new.voters}")
    for broker in added:
        if broker not in old.learners:
            raise RaftRejection(f"broker {broker} must be a learner before it becomes a voter")
    for broker in new.learners:
        if broker in new.voters:
            raise RaftRejection(f"broker {broker} cannot be both voter and learner")
