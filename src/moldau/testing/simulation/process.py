"""Owns what a simulated broker keeps in memory: gone when its process ends."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.log.interface import FlushTask
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch, RaftIndex
from moldau.raft.core import RaftCore
from moldau.raft.events import Role, RoleChanged
from moldau.replica.log_view import GroupLog
from moldau.testing.simulation.storage import FIRST


class Pending(NamedTuple):
    """A proposal whose client waits."""

    number: int
    start: RaftIndex
    end: RaftIndex
    epoch: Epoch


@dataclass(slots=True)
class Peer:
    """What a broker's peer link knows."""

    incarnation: int = 0
    confirmed: Epoch = NO_EPOCH
    """The epoch in which the peer said that it follows."""


@dataclass(slots=True)
class Process:
    """What is gone when the broker's process ends."""

    core: RaftCore
    view: GroupLog
    peers: dict[BrokerId, Peer] = field(default_factory=dict)
    pending: deque[Pending] = field(default_factory=deque)
    reads: dict[int, RaftIndex] = field(default_factory=dict)
    flush: tuple[FlushTask, RaftIndex, int] | None = None
    votes_done_at: int = 0
    tick_at: int = 1 << 62
    applied: RaftIndex = FIRST
    leader_sign: tuple[BrokerId, Epoch, int] | None = None
    """The last heartbeat of a leader that the core was not told of yet: from whom, epoch, time."""
    peer_signs: dict[BrokerId, tuple[Epoch, int]] = field(default_factory=dict)
    """The same for followers: epoch and time of their last answer."""
    leads: Epoch | None = None
    """The epoch that this broker leads, as of the last effect."""


def describe_role(effect: RoleChanged) -> str:
    """For traces."""
    text = f"{effect.role.value} epoch={effect.epoch}"
    if effect.role is Role.FOLLOWER and effect.leader >= 0:
        text += f" leader={effect.leader}"
    return text
