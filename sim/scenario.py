"""Scripted runs: a text of commands, and after `----` what is seen to happen.

Blocks are separated by empty lines; a line that begins with # is a comment. Nothing is random but
the election times, which a fixed seed decides; messages, flushes and votes take 1 ms each.

    cluster 3 [voters=2] [append=1] [inflight=1] [down]
                       begin; `append`, `inflight`: bounds in bytes and messages; `down`: nobody
                       is started yet
    log 1 1 1 2 [epoch=3]
                       before the start: the epochs of broker 1's entries, one record each, and the
                       epoch that it has seen
    start 2 | start all | kill 2 | power 2 | wipe 2 | pause 2 ms=500
                       `wipe`: with the power the disk is lost, too
    campaign 1         stand for election, if a majority agrees
    elect 1            the same, and let 40 ms pass
    run ms=100
    propose 1 [count=3]
    read 1 | transfer 1 to=2 | members 1 voters=1,2 learners=3 | retain 1 below=5
    isolate 1 | cut 1 2 | cut 1>2 | heal | heal 1 2
    stall 2 | unstall 2          the disk of broker 2 ends no flush
    full 1>2 | room 1>2          the link from 1 to 2 takes no entries
    again 1>2 nth=0              the nth frame with entries from 1 to 2 arrives once more
    ask 2>3 epoch=1 end=5 last=0 [pre]    a vote asked by hand
    answer 3>1 epoch=0 matched=5 flushed=5    an append answered by hand
    show 1 | show all            role, log by epochs, commit
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from moldau.log.vote_journal import VoteJournal
from moldau.model.errors import MoldauError
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
from moldau.raft.membership import Members
from moldau.raft.messages import AppendResponse, Message, VoteRequest
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch
from moldau.replica.peer_codec import encode_message
from moldau.testing.logs import flush
from moldau.testing.replicas import propose_batches
from sim.group import KEY, STEP_SECONDS, VOTES_PATH, GroupBroker, GroupWorld, describe

SEPARATOR: Final = "----"
_ELECT_SECONDS: Final = 0.040
_LINK_SECONDS: Final = 0.020
"""So long it takes until all are connected."""


class ScenarioError(ValueError):
    """A line that is not a command."""


class Played(NamedTuple):
    """What came of a script."""

    text: str
    """The same, with what really happened after each `----`."""
    events: int


def run_scenario(text: str) -> Played:
    scenario = Scenario()
    out = []
    try:
        for block in text.strip().split("\n\n"):
            commands = block.split(f"\n{SEPARATOR}")[0].splitlines()
            out.append("\n".join([*commands, SEPARATOR, *scenario.run_block(commands)]))
    finally:
        scenario.close()
    return Played("\n\n".join(out) + "\n", scenario.world.scheduler.events)


def _ids(text: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(part)) for part in text.split(",") if part)


def _batch(number: int, offset: int, epoch: Epoch) -> bytes:
    """One record, by a producer of its own."""
    record = Record(Offset(offset), TimestampMs(1000), None, b"", [])
    return build_batch(
        [record],
        base_offset=Offset(offset),
        leader_epoch=epoch,
        producer_id=ProducerId(number),
        producer_epoch=ProducerEpoch(0),
        base_sequence=0,
    )


class Scenario:
    """The world of one script."""

    def __init__(self) -> None:
        self._world: GroupWorld | None = None
        self._reads = 0
        self._proposals = 0
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
            "full": self._fill_link,
            "room": self._fill_link,
            "again": self._again,
            "ask": self._ask_vote,
            "answer": self._answer,
            "show": self._show,
        }

    def run_block(self, lines: list[str]) -> list[str]:
        for line in lines:
            if line.startswith("#"):
                continue
            words = line.split()
            if words[0] not in self._commands:
                raise ScenarioError(f"no such command: {line}")
            plain = [word for word in words if "=" not in word]
            named = dict(word.split("=", 1) for word in words if "=" in word)
            self._commands[words[0]](plain, named)
        notes: list[str] = []
        if self._world is not None:
            notes, self._world.notes = self._world.notes, []
        # What repeats at once is said once.
        return [note for place, note in enumerate(notes) if place == 0 or note != notes[place - 1]]

    def close(self) -> None:
        if self._world is not None:
            self._world.close()

    @property
    def world(self) -> GroupWorld:
        if self._world is None:
            raise ScenarioError("no cluster yet")
        return self._world

    def _broker(self, word: str) -> GroupBroker:
        return self.world.brokers[BrokerId(int(word))]

    def _brokers(self, word: str) -> list[GroupBroker]:
        return list(self.world.brokers.values()) if word == "all" else [self._broker(word)]

    def _ask(self, broker: GroupBroker, action: Callable[[], object]) -> None:
        def act() -> None:
            try:
                action()
            except MoldauError as refusal:
                broker.note(f"refuses: {refusal}")

        broker.do(act)

    # ---- the cluster

    def _cluster(self, words: list[str], named: dict[str, str]) -> None:
        count = int(words[1])
        config = RaftConfig(
            append_bytes_max=int(named.get("append", "4096")),
            inflight_count_max=int(named.get("inflight", "64")),
            snapshot_retry_ms=1500,
        )
        self._world = GroupWorld(count=count, voters=int(named.get("voters", count)), config=config)
        if "down" not in words:
            for broker in self._world.brokers.values():
                broker.start()
            self._world.run(_LINK_SECONDS)
        self._world.notes = []

    def _log(self, words: list[str], named: dict[str, str]) -> None:
        """Entries that are on the disk already; the same epoch and place mean the same entry."""
        broker = self._broker(words[1])
        log = broker.open_log()
        for place, word in enumerate(words[2:]):
            epoch = Epoch(int(word))
            data = _batch(100_000 + 1000 * epoch + place, place, epoch)
            log.append(data, [read_header(data)])
        flush(log)
        epoch = Epoch(int(named.get("epoch", log.last_epoch)))
        log.close()
        votes = VoteJournal.open(broker.disk, VOTES_PATH)
        votes.record({KEY.name: (epoch, BrokerId(-1))})
        votes.close()

    def _start(self, words: list[str], named: dict[str, str]) -> None:
        for broker in self._brokers(words[1]):
            if not broker.is_running:
                broker.note("starts")
                broker.start()
        self.world.run(0.0)
        self.world.dial_again()
        self.world.run(_LINK_SECONDS)

    def _kill(self, words: list[str], named: dict[str, str]) -> None:
        for broker in self._brokers(words[1]):
            broker.kill(is_power_cut=words[0] == "power")

    def _wipe(self, words: list[str], named: dict[str, str]) -> None:
        self._broker(words[1]).wipe()

    def _pause(self, words: list[str], named: dict[str, str]) -> None:
        broker = self._broker(words[1])
        broker.loop.paused_until = self.world.scheduler.now + int(named["ms"]) / 1000

    def _run(self, words: list[str], named: dict[str, str]) -> None:
        self.world.run(int(named["ms"]) / 1000)

    # ---- what is asked

    def _campaign(self, words: list[str], named: dict[str, str]) -> None:
        broker = self._broker(words[1])
        broker.do(lambda: broker.driver.campaign(broker.group))

    def _elect(self, words: list[str], named: dict[str, str]) -> None:
        self._campaign(words, named)
        self.world.run(_ELECT_SECONDS)

    def _propose(self, words: list[str], named: dict[str, str]) -> None:
        broker = self._broker(words[1])

        def propose() -> None:
            if not broker.group.core.may_propose:
                broker.note("takes no proposals")
                return
            self._proposals += 1
            data = bytearray(_batch(self._proposals, 0, Epoch(-1)))
            propose_batches(broker.driver, broker.group, data, [read_header(data)])
            end = broker.group.log.end_index
            broker.pending.append((end, broker.group.core.epoch, self._proposals))

        for _ in range(int(named.get("count", "1"))):
            broker.do(propose)

    def _read(self, words: list[str], named: dict[str, str]) -> None:
        broker = self._broker(words[1])
        self._reads += 1
        number = self._reads

        def read() -> None:
            future = broker.driver.read_index(broker.group)

            def reported(_: object) -> None:
                failed = future.cancelled() or future.exception() is not None
                broker.note(
                    f"read {number} failed" if failed else f"read {number} at {future.result()}"
                )

            future.add_done_callback(reported)

        self._ask(broker, read)

    def _transfer(self, words: list[str], named: dict[str, str]) -> None:
        broker = self._broker(words[1])
        target = BrokerId(int(named["to"]))
        self._ask(broker, lambda: broker.driver.transfer(broker.group, target))

    def _members(self, words: list[str], named: dict[str, str]) -> None:
        broker = self._broker(words[1])
        members = Members(_ids(named["voters"]), _ids(named.get("learners", "")))

        def change() -> None:
            broker.driver.change_members(broker.group, members)
            broker.note(f"voters {members.voters} learners {members.learners}")

        self._ask(broker, change)

    def _retain(self, words: list[str], named: dict[str, str]) -> None:
        broker = self._broker(words[1])
        broker.do(lambda: broker.group.log.delete_before(Offset(int(named["below"]))))

    # ---- faults

    def _isolate(self, words: list[str], named: dict[str, str]) -> None:
        broker = self._broker(words[1])
        for other in self.world.brokers.values():
            if other is not broker:
                self.world.part(broker, other)

    def _cut(self, words: list[str], named: dict[str, str]) -> None:
        if ">" in words[1]:
            source, target = (self._broker(part) for part in words[1].split(">"))
            self.world.cut(source, target)
        else:
            self.world.part(self._broker(words[1]), self._broker(words[2]))

    def _heal(self, words: list[str], named: dict[str, str]) -> None:
        if len(words) > 1:
            self.world.join(self._broker(words[1]), self._broker(words[2]))
        else:
            self.world.heal()
        self.world.run(_LINK_SECONDS)

    def _stall(self, words: list[str], named: dict[str, str]) -> None:
        self._broker(words[1]).stall(words[0] == "stall")
        # What ended is reported, and what it leads to has not begun to end.
        self.world.run(STEP_SECONDS / 2)

    def _fill_link(self, words: list[str], named: dict[str, str]) -> None:
        source, target = words[1].split(">")
        self._broker(source).fill_link(BrokerId(int(target)), words[0] == "full")

    def _again(self, words: list[str], named: dict[str, str]) -> None:
        source, target = words[1].split(">")
        broker = self._broker(target)
        kept = [body for sender, body in broker.frames if sender == int(source)]
        broker.deliver(BrokerId(int(source)), kept[int(named["nth"])])

    def _ask_vote(self, words: list[str], named: dict[str, str]) -> None:
        request = VoteRequest(
            Epoch(int(named["epoch"])),
            RaftIndex(int(named["end"])),
            Epoch(int(named["last"])),
            "pre" in words,
            False,
            LogId(int(named.get("log", FIRST_LOG))),
        )
        self._deliver(words[1], request)

    def _answer(self, words: list[str], named: dict[str, str]) -> None:
        epoch = Epoch(int(named["epoch"]))
        matched = RaftIndex(int(named["matched"]))
        flushed = RaftIndex(int(named["flushed"]))
        answer = AppendResponse(epoch, True, matched, matched, flushed, epoch, FIRST_LOG)
        self._deliver(words[1], answer)

    def _deliver(self, way: str, message: Message) -> None:
        source, target = way.split(">")
        self._broker(target).deliver(BrokerId(int(source)), encode_message(KEY.wire, message))

    # ---- looking

    def _show(self, words: list[str], named: dict[str, str]) -> None:
        for broker in self._brokers(words[1]):
            broker.note(describe(broker))
