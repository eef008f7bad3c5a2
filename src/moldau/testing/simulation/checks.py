"""Owns what must hold after every step, whatever fails. Each check is one fact of the protocol.

The checker sees more than any broker does: every entry ever written, every leader, what is on each
disk. It keeps the committed log as the leaders made it, and everybody is compared with that.
"""

from collections.abc import Iterable

from moldau.model.ids import BrokerId, Epoch, RaftIndex
from moldau.raft.messages import AppendAnswered, Message, VoteAnswered, VoteAsked
from moldau.testing.simulation.adapter import Item
from moldau.testing.simulation.storage import Shadow, Storage


class Violation(AssertionError):
    """A promise is broken."""


class Checker:
    """One for the whole group."""

    def __init__(self) -> None:
        self.leaders: dict[Epoch, BrokerId] = {}
        self._written: dict[tuple[RaftIndex, Epoch], tuple[RaftIndex, object, Epoch]] = {}
        self._votes: dict[tuple[BrokerId, Epoch], BrokerId] = {}
        self.committed = Shadow()
        self.committed_end = RaftIndex(0)
        self._committed_in: dict[Epoch, Item] = {}
        """The last entry that the leader of each epoch was the first to commit."""
        self._proposals: dict[int, RaftIndex] = {}
        """Where each proposal of a client stands in the committed log."""

    # ---- log matching

    def wrote(self, broker: BrokerId, items: Iterable[Item], prev_epoch: Epoch) -> None:
        """The same index and epoch mean the same entry, after an entry of the same epoch."""
        for item in items:
            entry = item.entry
            fact = (entry.end, item.identity, prev_epoch)
            known = self._written.setdefault((entry.start, entry.epoch), fact)
            if known != fact:
                raise Violation(
                    f"log matching: broker {broker} wrote {fact} at {entry.start} in epoch "
                    f"{entry.epoch}, another has {known}"
                )
            if entry.epoch < prev_epoch:
                raise Violation(f"broker {broker}: epoch {entry.epoch} after {prev_epoch}")
            prev_epoch = entry.epoch

    # ---- elections

    def elected(self, broker: BrokerId, epoch: Epoch, shadow: Shadow, end: RaftIndex) -> None:
        other = self.leaders.setdefault(epoch, broker)
        if other != broker:
            raise Violation(f"brokers {other} and {broker} both lead epoch {epoch}")
        # A leader may learn late that it was elected, when a later one has already committed more.
        for earlier, item in self._committed_in.items():
            if earlier >= epoch:
                continue
            entry = item.entry
            if end < entry.end or (entry.start >= shadow.start and shadow.at(entry.start) != item):
                raise Violation(
                    f"leader {broker} of epoch {epoch} ends at {end} and lacks {entry}, which was "
                    f"committed in epoch {earlier}"
                )

    def sending(
        self, broker: BrokerId, target: BrokerId, message: Message, storage: Storage
    ) -> None:
        """Nothing is said that a crash could make untrue."""
        match message:
            case VoteAsked(epoch=epoch, is_pre=False):
                self._voted(broker, epoch, broker, storage)
            case VoteAnswered(epoch=epoch, is_granted=True, is_pre=False):
                self._voted(broker, epoch, target, storage)
            case AppendAnswered(epoch=epoch, is_accepted=True, flushed=flushed):
                log = storage.log
                # An epoch that stands in the flushed log is as durable as one in the journal.
                if max(storage.vote()[0], log.epoch_of(RaftIndex(log.flushed_index - 1))) < epoch:
                    raise Violation(f"broker {broker} answered in epoch {epoch}, not durable")
                if flushed > storage.log.flushed_index:
                    raise Violation(
                        f"broker {broker} acknowledged {flushed}, flushed are "
                        f"{storage.log.flushed_index}"
                    )
            case _:
                pass

    def _voted(self, broker: BrokerId, epoch: Epoch, candidate: BrokerId, storage: Storage) -> None:
        if storage.vote() != (epoch, candidate):
            raise Violation(
                f"broker {broker} votes for {candidate} in {epoch}, durable is {storage.vote()}"
            )
        other = self._votes.setdefault((broker, epoch), candidate)
        if other != candidate:
            raise Violation(f"broker {broker} voted for {other} and {candidate} in {epoch}")

    # ---- commit

    def committed_here(
        self, broker: BrokerId, items: Iterable[Item], commit: RaftIndex, *, leads: Epoch | None
    ) -> list[Item]:
        """A broker learned that these are committed; returns those that nobody knew before."""
        news = []
        for item in items:
            start = item.entry.start
            if start < self.committed_end:
                known = self.committed.at(start)
                if known != item and start >= self.committed.start:
                    raise Violation(
                        f"broker {broker} commits {item.entry}, committed was "
                        f"{known.entry if known else 'nothing there'}"
                    )
                continue
            if leads is None:
                raise Violation(f"follower {broker} commits {item.entry} before any leader")
            if start != self.committed_end:
                raise Violation(f"broker {broker} commits {item.entry} after {self.committed_end}")
            self._count_proposal(item)
            self.committed.add([item])
            self.committed_end = item.entry.end
            news.append(item)
        if commit > self.committed_end:
            raise Violation(f"broker {broker} commits up to {commit}, inside an entry")
        if news and leads is not None:
            if news[-1].entry.epoch != leads:
                raise Violation(f"leader {broker} of {leads} commits up to {news[-1].entry}")
            self._committed_in[leads] = news[-1]
        return news

    def _count_proposal(self, item: Item) -> None:
        if item.header is not None:
            number = item.header.producer_id
            if number in self._proposals:
                raise Violation(f"proposal {number} is committed twice")
            self._proposals[number] = item.entry.start

    def on_majority(
        self,
        item: Item,
        voters: Iterable[BrokerId],
        disks: dict[BrokerId, list[tuple[Shadow, RaftIndex]]],
    ) -> None:
        """A new committed entry is on the disks of a majority, or was before one was lost."""
        wanted = tuple(voters)
        having = [
            voter
            for voter in wanted
            if any(
                promised >= item.entry.end
                and (shadow.start > item.entry.start or shadow.at(item.entry.start) == item)
                for shadow, promised in disks[voter]
            )
        ]
        if len(having) <= len(wanted) // 2:
            raise Violation(f"{item.entry} is committed, and durable only on {having} of {wanted}")

    # ---- clients

    def acked(self, number: int, start: RaftIndex) -> None:
        if self._proposals.get(number) != start:
            raise Violation(
                f"proposal {number} was acknowledged at {start}, committed is it at "
                f"{self._proposals.get(number)}"
            )

    def read(self, asked_at: RaftIndex, end: RaftIndex) -> None:
        if end < asked_at:
            raise Violation(f"stale read: {asked_at} were committed when asked, served at {end}")

    def recovered(self, broker: BrokerId, old: Shadow, new: Shadow, promised: RaftIndex) -> None:
        """After a crash everything flushed is there, and nothing that never was."""
        if new.items != old.between(RaftIndex(new.start), new.end):
            raise Violation(f"broker {broker} found other entries than it wrote")
        if new.end < promised:
            raise Violation(f"broker {broker} lost flushed entries: {new.end} of {promised}")
