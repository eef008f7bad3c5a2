"""Owns a simulated broker's dealings with its disk: every write is told to the checks first."""

from typing import TYPE_CHECKING

from moldau.log.interface import ControlKind
from moldau.model.errors import DiskFullError
from moldau.model.ids import BrokerId, Epoch, RaftIndex
from moldau.raft.membership import Members, encode_members
from moldau.raft.messages import Entry
from moldau.replica.log_view import GroupLog
from moldau.testing.simulation.adapter import Item, read_items, write_items
from moldau.testing.simulation.storage import Shadow, Storage

if TYPE_CHECKING:
    from moldau.testing.simulation.world import World


class BrokerDisk:
    """The part of a broker that survives its process."""

    def __init__(self, world: "World", broker_id: BrokerId, storage: Storage) -> None:
        self.world = world
        self.id = broker_id
        self.storage = storage
        self.shadow = Shadow()
        self.lost = (Shadow(), RaftIndex(0))
        """What it had written, and promised, in a log that was wiped."""
        self.is_full = False
        self.is_disk_stalled = False
        """Flushes that end wait until it is not."""
        self.promised = RaftIndex(0)
        """Entries below were flushed, and must survive."""

    def wipe(self) -> None:
        """The log and the votes are gone; what comes next is another log."""
        self.lost = (self.shadow, self.promised)
        self.storage = self.storage.replaced()
        self.shadow = Shadow()
        self.promised = RaftIndex(0)

    def _recover(self, *, is_power_cut: bool) -> None:
        """Find out what the crash left, and compare it with what was promised."""
        old, promised = self.shadow, self.promised
        self.storage.crash(self.world.rng_disk, is_power_cut=is_power_cut)
        log = self.storage.log
        view = GroupLog(log, self.world.initial)
        self.shadow = Shadow(view.start_index)
        self.shadow.add(self.world.originals(read_items(log, view.start_index, 1 << 60)))
        self.world.checker.recovered(self.id, old, self.shadow, promised)
        self.promised = log.flushed_index

    def _write(self, items: list[Item]) -> None:
        if self.is_full:
            # Some of them may still have fitted.
            fitted = items[: self.world.rng_disk.randrange(len(items))]
            if fitted:
                self._write_through(fitted)
            self.world.count("full disks")
            raise DiskFullError("no space left on the simulated disk")
        self._write_through(items)

    def _write_through(self, items: list[Item]) -> None:
        originals = self.world.originals(items)
        self.world.checker.wrote(self.id, originals, self.storage.log.last_epoch)
        self.shadow.add(originals)
        write_items(self.storage.log, items)

    def _write_control(self, kind: ControlKind, epoch: Epoch, members: Members | None) -> None:
        start = self.storage.log.end_index
        entry = Entry(start, RaftIndex(start + 1), epoch, members)
        payload = encode_members(members) if members is not None else b""
        self._write([Item(entry, kind, payload, None)])
        if members is not None:
            self.world.count("member changes")
            self.world.note(self.id, f"voters {members.voters} learners {members.learners}")
