"""A queue's machine in a world of its own, which keeps books and compares."""

import random
from typing import Any

from queue_invariants import check_invariants, snapshot

from moldau.leases.commands import (
    Ack,
    Claim,
    Command,
    Evict,
    ExpireDue,
    Extend,
    LogMessage,
    LogSlice,
    Nack,
    Poll,
    Recall,
    SettleDead,
    TakeOver,
    Trim,
)
from moldau.leases.config import QueueConfig
from moldau.leases.delay_buckets import DAY_MS, HOUR_MS, MINUTE_MS, DelayBucket
from moldau.leases.ledger import Ledger
from moldau.leases.records import decode, encode
from moldau.leases.results import (
    Decision,
    Done,
    GrantedLeases,
    Lease,
    Refusal,
    SettleResult,
)
from moldau.leases.state import Dead, Leased, QueueId, QueueRecord, Waiting
from moldau.leases.state_machine import QueueStateMachine
from moldau.leases.tokens import Token, decode_token, encode_token

QUEUE = QueueId("workers", bytes(range(16)), 3)
MEMBERS = ("ann", "bob", "čeněk")


class World:
    """One partition's log, the stored records, the leader and the one before it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        leases_max = rng.choice([1, 3, 6])
        self.config = QueueConfig(
            attempts_max=rng.choice([1, 2, 4]),
            backoff_ms_min=rng.choice([0, 10]),
            backoff_ms_max=200,
            visibility_ms_default=50,
            visibility_ms_max=1_000,
            delay_ms_max=500,
            leases_max=leases_max,
            open_max=leases_max + rng.choice([0, 2, 8]),
        )
        self.now = self.latest = 1_000
        self.log: list[LogMessage | None] = []
        self.log_start = 0
        self.has_appointments = rng.random() < 0.5
        self.times: list[int] = []
        self.stored: dict[bytes, bytes] = {}
        self.ledger = Ledger()
        self.tokens: list[tuple[Token, str]] = []
        # The books: what became of each message, as told by the answers of committed commands.
        self.acked: set[int] = set()
        self.buried: set[int] = set()
        self.trimmed: set[int] = set()
        self.dead: set[int] = set()
        self.deliveries: dict[int, int] = {}
        self.held: dict[int, tuple[str, int]] = {}
        self.past: QueueStateMachine | None = None
        self.epoch = 0
        self.begin(new_epoch=True)

    # ---- the leader

    def begin(self, *, new_epoch: bool) -> None:
        """Load what is stored: as the next leader, or as the same one that lost its memory."""
        if new_epoch:
            self.past = getattr(self, "machine", None)
            self.epoch += self.rng.choice([1, 1, 3])
        self.ledger = self.loaded()
        self.machine = QueueStateMachine(QUEUE, self.config, self.epoch)
        self.machine.load(self.ledger.stored(QUEUE))
        decision = self.machine.decide(
            TakeOver(epoch=self.epoch, now=self.now, start=0, end=len(self.log))
        )
        assert decision.result == Done(count=len(self.held) if new_epoch else 0)
        if decision.record is not None:
            self.commit(decision.record)
            if new_epoch:
                least = self.now + self.config.visibility_ms_default
                most = self.now + self.config.visibility_ms_max
                self.held = {o: (m, min(max(d, least), most)) for o, (m, d) in self.held.items()}
        assert self.machine.is_leading
        self.check()

    def loaded(self) -> Ledger:
        ledger = Ledger()
        items = list(self.stored.items())
        self.rng.shuffle(items)
        for key, value in items:
            ledger.replay(key, value)
        ledger.finish_loading()
        return ledger

    def commit(self, *records: QueueRecord, is_applied: bool = False) -> None:
        assert self.ledger.check(*map(encode, records)) is Refusal.NONE
        for record in records:
            key, value = encode(record)
            assert decode(key, value) == record
            self.stored[key] = value
            assert self.ledger.apply(key, value)
            assert is_applied or self.machine.apply(record)

    def do(self, *commands: Command) -> list[Any]:
        """Decide and commit, with any luck. Returns the answers; none if there were none."""
        if len(commands) == 1:
            before = snapshot(self.machine.state, QUEUE)
            decisions = [self.machine.decide(commands[0])]
            assert snapshot(self.machine.state, QUEUE) == before, "deciding changes nothing"
        else:
            decisions = [self.machine.decide_and_apply(command) for command in commands]
        records = [decision.record for decision in decisions if decision.record is not None]
        luck = self.rng.random()
        if records and luck < 0.03:
            # Lost on the way.
            self.begin(new_epoch=luck < 0.02)
            return []
        if records:
            self.commit(*records, is_applied=len(commands) > 1)
        for command, decision in zip(commands, decisions, strict=True):
            self.enter(command, decision)
        self.check()
        if records and luck < 0.06:
            # Committed, and nobody heard of it.
            self.begin(new_epoch=luck < 0.05)
            return []
        return [decision.result for decision in decisions]

    # ---- the books

    def enter(self, command: Command, decision: Decision) -> None:
        self.dead |= set(decision.died)
        match command, decision.result:
            case Poll(), GrantedLeases(leases=leases):
                assert len(leases) <= command.count_max
                for lease in leases:
                    self.delivered(lease, command)
            case Claim(), GrantedLeases(leases=leases):
                assert {lease.token.offset for lease in leases} <= command.offsets
                for lease in leases:
                    self.delivered(lease, command)
            case ((Ack() | Nack() | Extend()), SettleResult(refusals=refusals)):
                for token, refusal in zip(command.tokens, refusals, strict=True):
                    if refusal is Refusal.NONE:
                        self.answered(command, token)
            case ((ExpireDue() | Evict()), Done(count=count)):
                self.taken_back(command, decision.record, count)
            case Recall(), Done():
                pass
            case SettleDead(), Done():
                self.buried |= command.offsets & self.dead
                self.dead -= command.offsets
            case Trim(), Done():
                gone = set(range(command.start))
                self.trimmed |= gone
                self.dead -= gone
                self.held = {o: h for o, h in self.held.items() if o not in gone}
            case _:
                raise AssertionError(f"{command} is answered with {decision.result}")

    def taken_back(self, command: Any, record: QueueRecord | None, count: int) -> None:
        opened: dict[int, Any] = {} if record is None else dict(record.opened)
        for offset, (member, deadline) in list(self.held.items()):
            if not isinstance(opened.get(offset), Waiting | Dead):
                continue
            if isinstance(command, ExpireDue):
                assert deadline <= command.now, "no lease ends before its time"
            else:
                assert member == command.member, "only the leases of who is gone end"
            del self.held[offset]
            count -= 1
        assert count == 0

    def delivered(self, lease: Lease, command: Poll | Claim) -> None:
        token = lease.token
        offset = token.offset
        assert decode_token(encode_token(token)) == token
        message = self.log[offset]
        assert message is not None, "only messages are delivered"
        # By one leader's clock or another's: once it was due, it may come again at any time.
        assert message.deliver_at <= max(self.now, self.latest), "no message comes too early"
        assert offset not in self.acked, "an acknowledged message is delivered again"
        assert offset not in self.buried, "a dead letter is delivered again"
        assert offset not in self.held, "a message has one worker at a time"
        self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
        assert token.attempt == self.deliveries[offset] <= self.config.attempts_max
        assert lease.deadline == command.now + command.visibility_ms
        self.held[offset] = (command.member, lease.deadline)
        self.tokens.append((token, command.member))

    def answered(self, command: Ack | Nack | Extend, token: Token) -> None:
        member, deadline = self.held[token.offset]
        assert member == command.member, "only the holder settles"
        assert deadline > command.now, "late is late"
        assert token.attempt == self.deliveries[token.offset]
        if isinstance(command, Extend):
            self.held[token.offset] = (member, command.now + command.visibility_ms)
        else:
            del self.held[token.offset]
        if isinstance(command, Ack):
            self.acked.add(token.offset)

    def check(self) -> None:
        state = self.machine.state
        check_invariants(state, self.config)
        # Not at every step: it takes longer than all the rest.
        for ledger in (self.ledger, self.loaded()) if self.rng.random() < 0.3 else ():
            other = QueueStateMachine(QUEUE, self.config, self.epoch)
            other.load(ledger.stored(QUEUE))
            assert snapshot(other.state, QUEUE) == snapshot(state, QUEUE), (
                "the log tells the same state"
            )
        assert state.next <= len(self.log)
        for offset in range(state.next):
            is_done = offset in self.acked | self.buried | self.trimmed
            is_message = self.log[offset] is not None
            places = (offset in state.open) + self.buckets_with(offset)
            assert places == (is_message and not is_done), f"offset {offset} is lost or undead"
        assert {offset for offset, _ in state.dead} == self.dead
        for offset, entry in state.open.items():
            assert entry.attempts == self.deliveries.get(offset, 0)
            assert (offset in self.held) == isinstance(entry, Leased)
            if isinstance(entry, Dead):
                assert entry.attempts == self.config.attempts_max
                assert entry.reason

    def buckets_with(self, offset: int) -> int:
        message = self.log[offset]
        return sum(
            message is not None
            and bucket.first <= offset < bucket.end
            and bucket.covers(message[1])
            for bucket in self.machine.state.buckets.values()
        )

    # ---- what may happen

    def append(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            offset = len(self.log)
            kind = self.rng.random()
            if kind < 0.15:
                self.log.append(None)
            elif kind < (0.9 if self.has_appointments else 0.35):
                self.log.append(LogMessage(offset, self.some_time()))
            else:
                self.log.append(LogMessage(offset))

    def some_time(self) -> int:
        if not self.has_appointments:
            return self.now + self.rng.randrange(-50, 300)
        if not self.times or self.rng.random() < 0.2:
            ahead = self.rng.choice([MINUTE_MS, HOUR_MS, 3 * HOUR_MS, 4 * DAY_MS])
            time = self.now + self.rng.randrange(ahead)
            # Some on the first moment of a span, where mistakes would be.
            self.times.append(time - time % self.rng.choice([1, MINUTE_MS, HOUR_MS, DAY_MS]))
        # Again and again at the same times, also when they are near, or past.
        return self.rng.choice(self.times[-3:]) + self.rng.randrange(2_000)

    def read(self) -> LogSlice:
        first = max(0, self.machine.state.next - self.rng.choice([0, 0, 0, 2]))
        first += self.rng.random() < 0.05
        end = min(len(self.log), first + self.rng.choice([0, 1, 4, 100]))
        found = [message for message in self.log[first:end] if message is not None]
        return LogSlice(first=first, end=max(end, first), messages=tuple(found))

    def some_tokens(self) -> tuple[tuple[Token, ...], str]:
        if not self.tokens:
            return (Token(1, 1, 1, 1),), "ann"
        recent = self.tokens[-12:] if self.rng.random() < 0.8 else self.tokens
        chosen = self.rng.choices(recent, k=self.rng.randrange(1, 5))
        member = chosen[0][1] if self.rng.random() < 0.9 else self.rng.choice(MEMBERS)
        tokens = [token for token, _ in chosen]
        if self.rng.random() < 0.2:
            field, value = self.rng.choice(
                [
                    ("queue_checksum", 5),
                    ("epoch", self.epoch + self.rng.choice([-1, 0, 1])),
                    ("offset", self.rng.randrange(len(self.log) + 3)),
                    ("attempt", self.rng.randrange(1, 6)),
                ]
            )
            tokens.append(tokens[0]._replace(**{field: value}))
        return tuple(tokens), member

    def any_command(self) -> Command:
        rng = self.rng
        kind = rng.choices(
            ("poll", "claim", "ack", "nack", "extend", "expire", "evict", "bury", "trim", "recall"),
            (30, 5, 25, 12, 8, 15, 3, 6, 1, 10),
        )[0]
        tokens, member = self.some_tokens()
        match kind:
            case "poll":
                return Poll(
                    member=rng.choice(MEMBERS),
                    count_max=rng.choice([1, 2, 10]),
                    now=self.now,
                    visibility_ms=rng.choice([1, 50, 1_000]),
                    read=self.read(),
                )
            case "claim":
                wanted = rng.choices(range(len(self.log) + 2), k=rng.choice([1, 3, 8]))
                return Claim(
                    member=rng.choice(MEMBERS),
                    offsets=frozenset(wanted),
                    now=self.now,
                    visibility_ms=rng.choice([1, 50, 1_000]),
                    read=self.read(),
                )
            case "recall":
                buckets = list(self.machine.state.buckets.values())
                if not buckets:
                    return Recall(bucket=(MINUTE_MS, 0), now=self.now, read=self.read())
                return self.recall(rng.choice(buckets), rng.choice([1, 3, 100]))
            case "ack":
                return Ack(member=member, tokens=tokens, now=self.now)
            case "nack":
                delay = rng.choice([-1, -1, 0, 100])
                reason = rng.choice(["", "no luck", "ž" * 200, "\ud800"])
                return Nack(
                    member=member, tokens=tokens, now=self.now, delay_ms=delay, reason=reason
                )
            case "extend":
                return Extend(member=member, tokens=tokens, now=self.now, visibility_ms=80)
            case "expire":
                return ExpireDue(now=self.now, count_max=rng.choice([1, 1_000]))
            case "evict":
                return Evict(member=rng.choice(MEMBERS), now=self.now)
            case "bury":
                offsets = {o for o in sorted(self.dead) if rng.random() < 0.7}
                return SettleDead(offsets=frozenset(offsets | {rng.randrange(len(self.log) + 1)}))
            case _:
                self.log_start = rng.randrange(self.log_start, len(self.log) + 1)
                return Trim(start=self.log_start)

    def recall(self, bucket: DelayBucket, count: int) -> Recall:
        end = min(bucket.first + count, len(self.log))
        found = [message for message in self.log[bucket.first : end] if message is not None]
        if self.rng.random() < 0.5:
            found = [message for message in found if bucket.covers(message.deliver_at)]
        read = LogSlice(first=bucket.first, end=end, messages=tuple(found))
        return Recall(bucket=bucket.key, now=self.now, read=read)

    def step(self) -> None:
        self.now += self.rng.choice([0, 0, 1, 20, 60])
        if self.rng.random() < 0.05:
            self.now += self.rng.choice([MINUTE_MS // 2, HOUR_MS // 2, DAY_MS])
        chance = self.rng.random()
        if chance < 0.15:
            self.append()
        elif chance < 0.18:
            is_new = self.rng.random() < 0.7
            if is_new and self.rng.random() < 0.3:
                # Another broker's clock may be far behind.
                self.latest = max(self.now, self.latest)
                self.now = max(1_000, self.now - self.rng.choice([30, 3 * HOUR_MS, 3 * DAY_MS]))
            self.begin(new_epoch=is_new)
        elif chance < 0.22 and self.past is not None:
            self.let_the_past_try()
        else:
            count = self.rng.choice([1, 1, 2, 4])
            self.do(*(self.any_command() for _ in range(count)))

    def let_the_past_try(self) -> None:
        """A leader that does not know that it is none decides as ever; nothing of it is stored."""
        assert self.past is not None
        decision = self.past.decide(self.any_command())
        if decision.record is not None:
            assert self.ledger.check(encode(decision.record)) is Refusal.FENCED
            assert not self.machine.apply(decision.record)

    def drain(self) -> None:
        """Honest workers and a dead-letter topic that works: everything comes to its end."""
        is_busy = True
        for _ in range(40 * (len(self.log) + 5)):
            state = self.machine.state
            done = self.acked | self.buried | self.trimmed
            if all(m is None or o in done for o, m in enumerate(self.log)) and not state.open:
                return
            self.now += 100
            bucket = state.next_recall
            if not is_busy and not state.leased_count and not state.dead_count:
                times = [] if bucket is None else [bucket.recall_at]
                due = state.next_due()
                times += [] if due is None else [due]
                self.now = min((time for time in times if time > self.now), default=self.now)
            is_busy = False
            if bucket is not None and bucket.recall_at <= self.now:
                self.do(self.recall(bucket, 100))
            self.do(ExpireDue(now=self.now))
            self.do(SettleDead(offsets=frozenset(self.dead)))
            first = self.machine.state.next
            found = tuple(message for message in self.log[first:] if message is not None)
            read = LogSlice(first=first, end=len(self.log), messages=found)
            for polled in self.do(
                Poll(member="ann", count_max=10, now=self.now, visibility_ms=500, read=read)
            ):
                tokens = tuple(lease.token for lease in polled.leases)
                is_busy = bool(tokens)
                self.do(Ack(member="ann", tokens=tokens, now=self.now))
        raise AssertionError("something is never delivered")


def run(seed_or_rng: int | random.Random, steps: int = 150) -> World:
    rng = seed_or_rng
    world = World(rng if isinstance(rng, random.Random) else random.Random(rng))
    for _ in range(steps):
        world.step()
    world.drain()
    return world
