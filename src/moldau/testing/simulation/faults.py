"""Owns the actor that makes things happen in a simulated world: faults, clients, operators."""

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from moldau.model.ids import FIRST_LOG, BrokerId, Offset
from moldau.raft.errors import RaftRefusal
from moldau.raft.events import Event, MembersAsked, ReadAsked, Role, TransferAsked
from moldau.raft.membership import NO_BROKER, Members
from moldau.replica.log_view import GroupLog
from moldau.testing.simulation.broker import SimBroker
from moldau.testing.simulation.compaction import COMPACT_MS, clean

if TYPE_CHECKING:
    from moldau.testing.simulation.world import World


MEND_MS = 300
WIPED_OF_MIN = 3
"""Voters that a group must have to bear the loss of a disk."""


class Actor:
    """Each kind of deed repeats after random times with the mean that its rate says."""

    def __init__(self, world: "World", rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self._reads = 0
        self._is_proposing = True
        self.left_out: list[BrokerId] = []
        """Brokers that stay cut off when the rest is healed."""

    def begin(self) -> None:
        rates = self.world.rates
        deeds: list[tuple[int, Callable[[], None]]] = [
            (rates.propose_ms, self._propose),
            (rates.read_ms, self._read),
            (rates.cut_ms, self._cut),
            (rates.isolate_ms, self._isolate),
            (rates.heal_ms, self._heal),
            (rates.kill_ms, self._kill),
            (rates.power_cut_ms, self._power_cut),
            (rates.eio_ms, self._fail_flush),
            (rates.pause_ms, self._pause),
            (rates.full_ms, self._fill_disk),
            (rates.retention_ms, self._retain),
            (rates.transfer_ms, self._transfer),
            (rates.members_ms, self._change_members),
            (rates.wipe_ms, self._wipe),
            (MEND_MS if rates.wipe_ms else 0, self._mend),
        ]
        if self.world.compacts:
            deeds.append((COMPACT_MS, self._compact))
        for mean_ms, deed in deeds:
            if mean_ms:
                self._again(mean_ms, deed)

    def _again(self, mean_ms: int, deed: Callable[[], None]) -> None:
        rates = self.world.rates

        def act() -> None:
            if self.world.rates is rates or deed in (self._propose, self._mend):
                deed()
                self._again(mean_ms, deed)

        delay = 1 + int(self.rng.expovariate(1 / mean_ms))
        self.world.at(self.world.now + delay, None, act)

    def _any(self) -> SimBroker:
        brokers = self.world.brokers
        return brokers[BrokerId(self.rng.randint(1, len(brokers)))]

    def _leader(self) -> SimBroker | None:
        """A broker that believes it leads; there may be several."""
        leaders = [
            broker
            for broker in self.world.brokers.values()
            if broker.process is not None and broker.process.core.role is Role.LEADER
        ]
        return self.rng.choice(leaders) if leaders else None

    def _ask(self, broker: SimBroker, event: Event) -> bool:
        try:
            broker.handle(event)
        except RaftRefusal:
            return False
        return True

    # ---- clients and operators

    def _propose(self) -> None:
        leader = self._leader() if self._is_proposing else None
        if leader is not None and leader.paused_until <= self.world.now:
            for _ in range(1 if self.rng.random() < 0.8 else 8):
                self.world.on_disk(leader, self.world.propose)

    def _read(self) -> None:
        leader = self._leader()
        if leader is None or leader.process is None or leader.paused_until > self.world.now:
            return
        self._reads += 1
        leader.process.reads[self._reads] = self.world.checker.committed_end
        process = leader.process
        if not self._ask(leader, ReadAsked(self._reads)):
            del process.reads[self._reads]

    def _transfer(self) -> None:
        leader = self._leader()
        if leader is not None and self._ask(leader, TransferAsked(self._any().id)):
            self.world.count("transfers")

    def _change_members(self) -> None:
        leader = self._leader()
        if leader is None or leader.process is None:
            return
        core = leader.process.core
        members = self._wanted(core.members)
        lost = {
            voter
            for voter in members.voters
            if core.members.log_of(voter) != self.world.brokers[voter].storage.log.log_id
            and voter in core.members.voters
        }
        if len(members.voters) - len(lost) < members.quorum and not lost.issubset(
            core.replaced_voters()
        ):
            # No leader can know of a disk that was lost a moment ago, and nothing brings it back.
            return
        self.world.on_disk(leader, lambda broker: self._ask(broker, MembersAsked(members)))

    def _wanted(self, members: Members) -> Members:
        broker = self._any().id
        if broker in members.learners:
            return (
                members.with_voter(broker) if self.rng.random() < 0.8 else members.without(broker)
            )
        if broker in members.voters:
            return members.without(broker) if len(members.voters) > 1 else members
        return members.with_learner(broker)

    def _retain(self) -> None:
        """Delete old records of one broker, up to some place below its commit."""
        broker = self._any()
        if broker.process is None:
            return
        log = broker.storage.log
        # Not beyond the own flushed end either: a power cut would leave a start inside a batch
        # that is gone.
        end = log.offset_of(min(broker.process.core.commit, log.flushed_index))
        if end <= log.start_offset:
            return
        offset = Offset(self.rng.randint(log.start_offset, end))
        self.world.on_disk(broker, lambda _: log.delete_before(offset))
        self.world.count("retentions")

    def _compact(self) -> None:
        broker = self._any()
        if broker.process is not None:
            self.world.on_disk(broker, self._clean)

    def _clean(self, broker: SimBroker) -> None:
        leader = broker.process.core.leader if broker.process is not None else NO_BROKER
        if clean(broker, self.world.brokers.get(leader), self.world.now):
            self.world.count("cleanings")

    # ---- faults

    def _cut(self) -> None:
        source, target = self._any().id, self._any().id
        if source != target:
            self.world.network.cut(source, target)
            if self.rng.random() < 0.5:
                self.world.network.cut(target, source)
            self.world.count("cuts")

    def _isolate(self) -> None:
        broker = self._leader() if self.rng.random() < 0.6 else self._any()
        if broker is None:
            return
        ways = self.rng.choice(((True, True), (True, False), (False, True)))
        for other in self.world.brokers:
            if other != broker.id:
                if ways[0]:
                    self.world.network.cut(broker.id, other)
                if ways[1]:
                    self.world.network.cut(other, broker.id)
        self.world.count("isolations")

    def _heal(self) -> None:
        self.world.network.heal()

    def _kill(self) -> None:
        self.world.crash(self._any(), is_power_cut=False)

    def _power_cut(self) -> None:
        chance = self.rng.random()
        if chance < 0.15:
            for broker in self.world.brokers.values():
                self.world.crash(broker, is_power_cut=True)
        elif chance < 0.5:
            self._any().storage.crash_soon(self.rng.randint(0, 30))
        else:
            self.world.crash(self._any(), is_power_cut=True)

    def _wipe(self) -> None:
        """Lose one disk, while the group can still afford that: never a second one before the
        first broker is a voter again, and of at least three."""
        broker = self._any()
        if all(
            len(members.voters) >= WIPED_OF_MIN
            and all(
                members.log_of(voter) == self.world.brokers[voter].storage.log.log_id
                for voter in members.voters
            )
            for members in self._known_members()
        ):
            self.world.wipe(broker)
            delay = 1 + int(self.rng.random() * 2 * self.world.rates.down_ms)
            self.world.at(self.world.now + delay, None, lambda: self.world.restart(broker))

    def _known_members(self) -> list[Members]:
        """The newest members in each log, and those that they came from if that is not over."""
        known = []
        for broker in self.world.brokers.values():
            view = GroupLog(broker.storage.log, self.world.initial)
            index, members = view.members(view.end_index)
            known += [members, view.members(index)[1] if index >= 0 else members]
        return known

    def _mend(self) -> None:
        """What the product's steward does: whoever lost its log learns, and votes again."""
        leader = self._leader()
        if leader is None or leader.process is None:
            return
        core = leader.process.core
        members = core.members
        for voter in core.replaced_voters():
            self.world.on_disk(
                leader,
                partial(self._ask_members, members=members.with_learner(voter)),
            )
            return
        for learner in members.learners:
            if self.world.brokers[learner].storage.log.log_id != FIRST_LOG:
                self.world.on_disk(
                    leader,
                    partial(self._ask_members, members=members.with_voter(learner)),
                )
                return

    def _ask_members(self, broker: SimBroker, members: Members) -> None:
        self._ask(broker, MembersAsked(members))

    def _fail_flush(self) -> None:
        broker = self._any()
        if broker.process is not None:
            broker.storage.fail_next_flush()
            self.world.count("flush errors")

    def _pause(self) -> None:
        broker = self._any()
        length = 1 + int(self.rng.random() * 2 * self.world.rates.pause_length_ms)
        # Never shorter than a pause under way: what waits for its end must stay in order.
        broker.paused_until = max(broker.paused_until, self.world.now + length)
        self.world.count("pauses")
        # It is only silent, and comes back as the leader that it was.
        self.world.tell_ended(broker)

    def _fill_disk(self) -> None:
        broker = self._any()
        broker.is_full = not broker.is_full

    # ---- the end of faults

    def stop_proposing(self) -> None:
        self._is_proposing = False

    def heal_some(self) -> None:
        """No faults from here on, and a majority works. The others stay cut off, if that is safe
        to say: while members change, only the whole cluster surely holds a majority."""
        world = self.world
        changed = bool(world.rates.members_ms or world.rates.wipe_ms)
        world.rates = world.rates.healed()
        world.network.heal()
        world.network.set_rates(world.rates)
        voters = list(world.initial.voters)
        self.rng.shuffle(voters)
        if self.rng.random() < 0.5 and not changed:
            self.left_out = voters[len(voters) // 2 + 1 :]
        for broker in world.brokers.values():
            if broker.id in self.left_out:
                for other in world.brokers:
                    if other != broker.id:
                        world.network.cut(broker.id, other)
                        world.network.cut(other, broker.id)
                continue
            broker.is_full = False
            world.restart(broker)
