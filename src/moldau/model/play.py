"""Faults that are made on purpose, in a cluster that somebody plays with on one machine.

`moldau cluster start` and `moldau dev` hand their brokers a `Playground`; no other broker has one.
"""

from enum import Enum
from typing import Final, Protocol

from msgspec import Struct

PAUSE_SECONDS: Final = 10
PAUSE_SECONDS_MAX: Final = 120
"""A pause ends by itself: nobody is left with a frozen broker."""
DELAY_MS_MAX: Final = 5000
PLAY_OPTION: Final = "--play"
"""Of `moldau broker start`: the directory of the cluster whose supervisor starts it."""


class PlayKind(Enum):
    KILL = "kill"
    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"
    LINK = "link"
    DISK = "disk"
    HEAL = "heal"
    """Everything as it was before somebody played."""


class PlayAction(Struct, frozen=True, kw_only=True):
    """What to do. Only the fields of its kind count."""

    kind: PlayKind
    by: str
    """Who requested it, for people."""
    broker: int = -1
    other: int = -1
    """The other end of the link."""
    is_cut: bool = True
    seconds: int = PAUSE_SECONDS
    delay_ms: int = 0

    def __str__(self) -> str:
        match self.kind:
            case PlayKind.LINK:
                verb = "cut" if self.is_cut else "mend"
                return f"{verb} the link between brokers {self.broker} and {self.other}"
            case PlayKind.DISK:
                return f"delay each flush of broker {self.broker} by {self.delay_ms} ms"
            case PlayKind.PAUSE:
                return f"pause broker {self.broker} for {self.seconds} s"
            case PlayKind.HEAL:
                return "end all faults, and start what is down"
            case _:
                return f"{self.kind.value} broker {self.broker}"


class CutLink(Struct, frozen=True, order=True):
    """Two brokers that do not reach each other, the smaller id first."""

    a: int
    b: int


class SlowDisk(Struct, frozen=True, kw_only=True, order=True):
    broker: int
    delay_ms: int
    """Of each flush, before it begins."""


class PlayFaults(Struct, frozen=True, kw_only=True):
    """The faults that brokers make themselves."""

    links: tuple[CutLink, ...] = ()
    disks: tuple[SlowDisk, ...] = ()

    def cut_from(self, broker: int) -> frozenset[int]:
        """The brokers that this one does not reach."""
        ends = [(link.a, link.b) for link in self.links]
        return frozenset(b if a == broker else a for a, b in ends if broker in (a, b))

    def delay_ms(self, broker: int) -> int:
        return next((disk.delay_ms for disk in self.disks if disk.broker == broker), 0)


NO_FAULTS: Final = PlayFaults()


class PlayedBroker(Struct, frozen=True, kw_only=True):
    id: int
    state: str
    """Of its process: ready, paused, killed, starting, …"""
    reason: str
    http: str | None
    """Where its console is; null: not known."""
    resumes_in_ms: int | None
    """null: it is not paused."""


class PlayBoard(Struct, frozen=True, kw_only=True):
    """What can be played with here, and what is broken on purpose now."""

    answered_by: int
    offers: tuple[PlayKind, ...]
    about: str
    """What is not offered, and why; empty: everything is."""
    brokers: tuple[PlayedBroker, ...]
    links: tuple[CutLink, ...]
    disks: tuple[SlowDisk, ...]


class Playground(Protocol):
    """Who makes the faults."""

    def faults(self) -> PlayFaults:
        """Those to be made now. Asked several times a second."""
        ...

    async def board(self, me: int) -> PlayBoard:
        """`me`: the broker that answers. Raises RefusedError."""
        ...

    async def do(self, action: PlayAction, me: int) -> None:
        """What ends or pauses this very broker happens a moment later, so that it can answer.
        Raises RefusedError."""
        ...
