"""Owns scripted runs: a text of commands, and after `----` what is seen to happen.

Blocks are separated by empty lines; a line that begins with # is a comment. Nothing is random but
the election times, which a fixed seed decides; messages take 1 ms each, flushes and votes 1 ms.

    cluster 3 [voters=2] [kind=disk] [append=1] [inflight=1] [down]
                       begin; `append`, `inflight`: bounds in bytes and messages; `down`: nobody
                       is started yet
    log 1 1 1 2 [epoch=3]
                       before the start: the epochs of broker 1's entries, one record each, and the
                       epoch that it has seen
    start 2 | start all | kill 2 | power 2 | wipe 2 | pause 2 ms=500
                       `wipe`: with the power the disk is lost, too
    restore 2          it may vote again
    campaign 1         stand for election, if a majority agrees
    elect 1            the same, and let 40 ms pass
    run ms=100
    propose 1 [count=3]
    read 1 | transfer 1 to=2 | members 1 voters=1,2 learners=3 | retain 1 below=5
    isolate 1 | cut 1 2 | cut 1>2 | heal
    stall 2 | unstall 2          the disk of broker 2 ends no flush
    again 1>2 nth=0              the nth message with entries from 1 to 2 arrives once more
    ask 2>3 epoch=1 end=5 last=0 [pre]    a vote asked by hand
    answer 3>1 epoch=0 matched=5 flushed=5    an append answered by hand
    show 1 | show all            role, log by epochs, commit
"""

from collections.abc import Callable

from moldau.model.ids import (
    FIRST_LOG,
    BrokerId,
    Epoch,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    RaftIndex,
    TimestampMs,
)
from moldau.raft.config import RaftConfig
from moldau.raft.core import RaftCore
from moldau.raft.errors import RaftRefusal
from moldau.raft.events import (
    CampaignAsked,
    Event,
    MembersAsked,
    ReadAsked,
    Role,
    TransferAsked,
)
from moldau.raft.membership import Members
from moldau.raft.messages import AppendAnswered, Message, VoteAsked
from moldau.records.record import Record, build_batch
from moldau.replica.log_view import GroupLog
from moldau.testing.logs import flush
from moldau.testing.simulation.adapter import batch_items, write_items
from moldau.testing.simulation.broker import SimBroker
from moldau.testing.simulation.checks import Violation
from moldau.testing.simulation.network import Parcel
from moldau.testing.simulation.rates import Rates
from moldau.testing.simulation.storage import MemoryStorage
from moldau.testing.simulation.world import World

SEPARATOR = "----"
CALM = Rates(delay_ms=1, flush_ms=1, vote_ms=1)
ELECT_MS = 40


class ScenarioError(ValueError):
    """A line that is no command."""


def run_scenario(text: str, core_class: type[RaftCore] = RaftCore) -> str:
    """The same text, with what really happened after each `----`."""
    scenario = Scenario(core_class)
    out = []
    for block in text.strip().split("\n\n"):
        commands = block.split(f"\n{SEPARATOR}")[0].splitlines()
        out.append("\n".join([*commands, SEPARATOR, *scenario.run_block(commands)]))
    return "\n\n".join(out) + "\n"


def _ids(text: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(part)) for part in text.split(",") if part)


class Scenario:
    """The world of one script."""

    def __init__(self, core_class: type[RaftCore]) -> None:
        self._core_class = core_class
        self._world: World | None = None
        self._reads = 0
        self._commands: dict[str, Callable[[list[str], dict[str, str]], None]] = {
            "cluster": self._cluster,
            "log": self._log,
            "start": self._start,
            "kill": self._kill,
            "power": self._kill,
            "wipe": self._wipe,
            "pause": self._pause,
            "campaign": self._campaign,
            "elect": self._elect,
            "run": self._run,
            "propose": self._propose,
            "read": self._read,
            "transfer": self._transfer,
            "members": self._members,
            "retain": self._retain,
            "isolate": self._isolate,
            "cut": self._cut,
            "heal": self._heal,
            "stall": self._stall,
            "unstall": self._stall,
            "again": self._again,
            "ask": self._ask_vote,
            "answer": self._answer,
            "show": self._show,
        }

    def run_block(self, lines: list[str]) -> list[str]:
        notes: list[str] = []
        for line in lines:
            if line.startswith("#"):
                continue
            words = line.split()
            if words[0] not in self._commands:
                raise ScenarioError(f"no such command: {line}")
            plain = [word for word in words if "=" not in word]
            named = dict(word.split("=", 1) for word in words if "=" in word)
            try:
                self._commands[words[0]](plain, named)
            except Violation as violation:
                self.world.note(BrokerId(0), f"violation: {violation}")
        if self._world is not None:
            notes, self._world.notes = self._world.notes or [], []
        # What repeats at once is said once.
        return [note for place, note in enumerate(notes) if place == 0 or note != notes[place - 1]]

    @property
    def world(self) -> World:
        if self._world is None:
            raise ScenarioError("no cluster yet")
        return self._world

    def _broker(self, word: str) -> SimBroker:
        return self.world.brokers[BrokerId(int(word))]

    def _brokers(self, word: str) -> list[SimBroker]:
        return list(self.world.brokers.values()) if word == "all" else [self._broker(word)]

    def _ask(self, broker: SimBroker, event: Event) -> None:
        try:
            broker.handle(event)
        except RaftRefusal as refusal:
            self.world.note(broker.id, f"refuses: {refusal}")

    # ---- the cluster

    def _cluster(self, words: list[str], named: dict[str, str]) -> None:
        count = int(words[1])
        world = World(
            seed=1,
            kind=named.get("kind", "memory"),
            rates=CALM,
            brokers=count,
            voters=int(named.get("voters", count)),
            core_class=self._core_class,
            raft_config=RaftConfig(
                append_bytes_max=int(named.get("append", "4096")),
                inflight_count_max=int(named.get("inflight", "64")),
                snapshot_retry_ms=1500,
            ),
            acts=False,
            records_max=1,
        )
        self._world = world
        world.network.kept = []
        for broker in world.brokers.values():
            if isinstance(broker.storage, MemoryStorage):
                broker.storage.keeps_unflushed = False
        if "down" not in words:
            world.start()
        world.notes = []

    def _log(self, words: list[str], named: dict[str, str]) -> None:
        """Entries that are on the disk already; the same epoch and place mean the same entry."""
        broker = self._broker(words[1])
        log = broker.storage.log
        for place, word in enumerate(words[2:]):
            epoch = Epoch(int(word))
            number = 100_000 + 1000 * epoch + place
            record = Record(Offset(place), TimestampMs(1000), None, b"", [])
            data = build_batch(
                [record],
                base_offset=Offset(place),
                leader_epoch=epoch,
                producer_id=ProducerId(number),
                producer_epoch=ProducerEpoch(0),
                base_sequence=0,
            )
            items = batch_items(log.end_index, data)
            self.world.checker.wrote(broker.id, items, log.last_epoch)
            broker.shadow.add(items)
            write_items(log, items)
        flush(log)
        epoch = Epoch(int(named.get("epoch", log.last_epoch)))
        broker.storage.record_vote(epoch, BrokerId(-1))
        broker.promised = log.flushed_index

    def _start(self, words: list[str], named: dict[str, str]) -> None:
        for broker in self._brokers(words[1]):
            self.world.restart(broker)

    def _kill(self, words: list[str], named: dict[str, str]) -> None:
        for broker in self._brokers(words[1]):
            self.world.kill(broker, is_power_cut=words[0] == "power")

    def _wipe(self, words: list[str], named: dict[str, str]) -> None:
        self.world.wipe(self._broker(words[1]))

    def _pause(self, words: list[str], named: dict[str, str]) -> None:
        self._broker(words[1]).paused_until = self.world.now + int(named["ms"])

    def _run(self, words: list[str], named: dict[str, str]) -> None:
        self.world.run_until(self.world.now + int(named["ms"]))

    # ---- what is asked

    def _campaign(self, words: list[str], named: dict[str, str]) -> None:
        self._broker(words[1]).handle(CampaignAsked())

    def _elect(self, words: list[str], named: dict[str, str]) -> None:
        self._campaign(words, named)
        self.world.run_until(self.world.now + ELECT_MS)

    def _propose(self, words: list[str], named: dict[str, str]) -> None:
        broker = self._broker(words[1])
        for _ in range(int(named.get("count", "1"))):
            if not self.world.propose(broker):
                self.world.note(broker.id, "takes no proposals")

    def _read(self, words: list[str], named: dict[str, str]) -> None:
        broker = self._broker(words[1])
        self._reads += 1
        if broker.process is not None:
            broker.process.reads[self._reads] = self.world.checker.committed_end
        self._ask(broker, ReadAsked(self._reads))

    def _transfer(self, words: list[str], named: dict[str, str]) -> None:
        self._ask(self._broker(words[1]), TransferAsked(BrokerId(int(named["to"]))))

    def _members(self, words: list[str], named: dict[str, str]) -> None:
        members = Members(_ids(named["voters"]), _ids(named.get("learners", "")))
        self._ask(self._broker(words[1]), MembersAsked(members))

    def _retain(self, words: list[str], named: dict[str, str]) -> None:
        self._broker(words[1]).storage.log.delete_before(Offset(int(named["below"])))

    # ---- faults

    def _isolate(self, words: list[str], named: dict[str, str]) -> None:
        broker = BrokerId(int(words[1]))
        for other in self.world.brokers:
            if other != broker:
                self.world.network.cut(broker, other)
                self.world.network.cut(other, broker)

    def _cut(self, words: list[str], named: dict[str, str]) -> None:
        if ">" in words[1]:
            source, target = (BrokerId(int(part)) for part in words[1].split(">"))
            self.world.network.cut(source, target)
        else:
            first, second = BrokerId(int(words[1])), BrokerId(int(words[2]))
            self.world.network.cut(first, second)
            self.world.network.cut(second, first)

    def _heal(self, words: list[str], named: dict[str, str]) -> None:
        self.world.network.heal()

    def _stall(self, words: list[str], named: dict[str, str]) -> None:
        broker = self._broker(words[1])
        if words[0] == "stall":
            broker.is_disk_stalled = True
        else:
            broker.end_stall()

    def _again(self, words: list[str], named: dict[str, str]) -> None:
        source, target = (int(part) for part in words[1].split(">"))
        kept = [
            parcel
            for parcel in self.world.network.kept or []
            if (parcel.source, parcel.target) == (source, target)
        ]
        self.world.brokers[BrokerId(target)].receive(kept[int(named["nth"])])

    def _ask_vote(self, words: list[str], named: dict[str, str]) -> None:
        source, target = (BrokerId(int(part)) for part in words[1].split(">"))
        question = VoteAsked(
            Epoch(int(named["epoch"])),
            RaftIndex(int(named["end"])),
            Epoch(int(named["last"])),
            "pre" in words,
            False,
            LogId(int(named.get("log", FIRST_LOG))),
        )
        self._deliver(source, target, question)

    def _answer(self, words: list[str], named: dict[str, str]) -> None:
        source, target = (BrokerId(int(part)) for part in words[1].split(">"))
        epoch = Epoch(int(named["epoch"]))
        matched = RaftIndex(int(named["matched"]))
        answer = AppendAnswered(
            epoch, True, matched, matched, RaftIndex(int(named["flushed"])), epoch, FIRST_LOG
        )
        self._deliver(source, target, answer)

    def _deliver(self, source: BrokerId, target: BrokerId, message: Message) -> None:
        incarnation = self.world.brokers[source].incarnation
        self.world.brokers[target].receive(Parcel(source, target, incarnation, message))

    # ---- looking

    def _show(self, words: list[str], named: dict[str, str]) -> None:
        for broker in self._brokers(words[1]):
            self.world.note(broker.id, describe(broker))


def describe(broker: SimBroker) -> str:
    """One line on a broker: `leader epoch=2 log 0×3 2×1 flushed=4 commit=4`."""
    runs: list[tuple[Epoch, int]] = []
    start = GroupLog(broker.storage.log, broker.world.initial).start_index
    for item in broker.shadow.items:
        if item.entry.start < start:
            continue
        size = item.entry.end - item.entry.start
        if runs and runs[-1][0] == item.entry.epoch:
            runs[-1] = (item.entry.epoch, runs[-1][1] + size)
        else:
            runs.append((item.entry.epoch, size))
    log = " ".join(f"{epoch}×{size}" for epoch, size in runs) or "empty"
    if start:
        log = f"from {start}: {log}"
    process = broker.process
    if process is None:
        return f"down log {log} flushed={broker.promised}"
    core = process.core
    role = core.role.value if core.role is not Role.FOLLOWER else f"follower of {core.leader}"
    if core.leader < 0 and core.role is Role.FOLLOWER:
        role = "follower"
    text = f"{role} epoch={core.epoch} log {log} flushed={core.flushed} commit={core.commit}"
    if core.members != broker.world.initial:
        text += f" voters={','.join(map(str, core.members.voters))}"
        if core.members.learners:
            text += f" learners={','.join(map(str, core.members.learners))}"
    return text if core.log_id == core.members.log_of(core.me) else f"{text}, may not vote"
