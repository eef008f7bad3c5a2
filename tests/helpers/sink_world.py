"""Owns a model of brokers, of Spark, and of everything that can go wrong between the two.

Drivers and task attempts are processes of their own that call a port. Before and after each call
another process may go on; a process may die before a call, after it, or die while the call is on
its way and arrives much later. A driver may be taken for dead and live on beside its successor.
"""

import itertools
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from moldau.client.errors import ClientError
from moldau.client.wire.transactions import TransactionalProducer as Transaction
from moldau.spark.sink import protocol
from moldau.spark.sink.decisions import Ledger, LedgerEntry, encode_entry
from moldau.spark.sink.protocol import Begin, TaskAttempt, TaskResult
from moldau.spark.sink.sink_client import SinkClient

QUERY = "q"
T = TypeVar("T")
FATES = [f"{whose}{when}" for whose in ("", "unanswered ") for when in ("before", "after", "late")]
"""Of a call: it is not done, it is done, it is done later; the caller dies or is told nothing."""
Row = tuple[int, int, int]
"""Batch, part, number."""


class FencedError(ClientError):
    """Somebody else has the name now."""


class DiedError(BaseException):
    """This process is no more."""


@dataclass
class Named:
    """What a coordinator keeps of a name."""

    producer_id: int
    epoch: int = -1
    state: str = "empty"
    last_epoch: int = -1
    """That of whoever may ask again for what it was told."""
    nonce: int = -1
    rows: list[Row] = field(default_factory=list)


class Brokers:
    """The log of decisions, the transactions, and what they made readable."""

    def __init__(self) -> None:
        self.log: list[tuple[int, str, bytes | None]] = []
        self.end = 0
        self.names: dict[str, Named] = {}
        self.committed: list[Row] = []

    def append(self, pairs: Iterable[tuple[str, bytes | None]]) -> None:
        for key, value in pairs:
            self.log.append((self.end, key, value))
            self.end += 1

    def compact(self, until: int) -> None:
        """Keep the last of each key, of those before `until`; deletions leave nothing behind."""
        last = {key: offset for offset, key, _ in self.log if offset < until}
        self.log = [
            (offset, key, value)
            for offset, key, value in self.log
            if offset >= until or (last[key] == offset and value is not None)
        ]

    def begin(self, name: str) -> Transaction:
        found = self.names.setdefault(name, Named(len(self.names)))
        found.epoch += 1
        found.state, found.rows, found.last_epoch = "empty", [], -1
        return Transaction(name=name, producer_id=found.producer_id, epoch=found.epoch)

    def go_on(self, before: Transaction, nonce: int) -> Transaction | None:
        """As InitProducerId does it for one that names its id and epoch."""
        found = self.names[before.name]
        if found.state == "open":
            return None
        if before.epoch == found.epoch:
            found.last_epoch = found.epoch
            found.epoch += 1
        elif found.last_epoch < 0 or before.epoch != found.last_epoch:
            return None
        found.state, found.rows, found.nonce = "empty", [], nonce
        return Transaction(name=before.name, producer_id=found.producer_id, epoch=found.epoch)

    def enter(self, transaction: Transaction) -> None:
        found = self.names[transaction.name]
        if found.epoch != transaction.epoch or found.state not in ("empty", "open"):
            raise FencedError(f"{transaction} cannot be entered")
        found.state, found.last_epoch = "open", -1

    def write(self, transaction: Transaction, row: Row, sequence: int) -> None:
        self.enter(transaction)
        found = self.names[transaction.name]
        # A number that was there is taken for the same row again.
        if sequence == len(found.rows):
            found.rows.append(row)
        elif sequence > len(found.rows):
            raise FencedError("out of order")

    def commit(self, transaction: Transaction) -> bool:
        found = self.names[transaction.name]
        if found.epoch != transaction.epoch or found.state not in ("open", "committed"):
            return False
        if found.state == "open":
            self.committed += found.rows
            found.state = "committed"
        return True

    def is_open(self, transaction: Transaction) -> bool:
        found = self.names[transaction.name]
        return found.epoch == transaction.epoch and found.state == "open"


class ModelPort(SinkClient):
    """A process's way to the brokers; `step` is where it may stop, or die."""

    def __init__(self, brokers: Brokers, call: "Call") -> None:
        self._brokers = brokers
        self._call = call
        self._ledger = Ledger(query=QUERY)
        self.is_late = False
        """Transactions are about to time out."""

    def read(self, query: str) -> Ledger:
        def read() -> Ledger:
            for offset, key, value in self._brokers.log:
                if offset >= self._ledger.position:
                    self._ledger.apply(key, value)
            self._ledger.position = self._brokers.end
            return self._ledger.copy()

        return self._call("read", read)

    def append(
        self, ledger: Ledger, entries: Sequence[LedgerEntry], deleted: Sequence[str] = ()
    ) -> None:
        pairs: list[tuple[str, bytes | None]] = [
            (entry.key(QUERY), encode_entry(entry)) for entry in entries
        ]
        pairs += [(key, None) for key in deleted]
        kind = type(entries[0]).__name__ if entries else "deletions"
        self._call(f"append {kind}", lambda: self._brokers.append(pairs))

    def begin(self, name: str) -> Transaction:
        return self._call("begin", lambda: self._brokers.begin(name))

    def next_transaction(self, before: Transaction, nonce: int) -> Transaction | None:
        return self._call("next_transaction", lambda: self._brokers.go_on(before, nonce))

    def add_partition(self, transaction: Transaction, key: tuple[str, int]) -> None:
        self._call("add_partition", lambda: self._brokers.enter(transaction))

    def has_nonce(self, transaction: Transaction, nonce: int) -> bool:
        return self._call(
            "has_nonce",
            lambda: (
                self._brokers.is_open(transaction)
                and self._brokers.names[transaction.name].nonce == nonce
            ),
        )

    def write(self, transaction: Transaction, row: Row, sequence: int = 0) -> None:
        self._call("write", lambda: self._brokers.write(transaction, row, sequence))

    def expiring(self, transactions: Iterable[Transaction]) -> dict[str, bool]:
        asked = list(transactions)
        return self._call(
            "expiring",
            lambda: {t.name: self.is_late for t in asked if self._brokers.is_open(t)},
        )

    def commit(self, transactions: Iterable[Transaction]) -> list[Transaction]:
        lost = []
        for each in transactions:
            if not self._call("commit", lambda each=each: self._brokers.commit(each)):
                lost.append(each)
        return lost

    def abort(self, names: Iterable[str]) -> None:
        for name in names:
            self._call("abort", lambda name=name: self._brokers.begin(name))

    def open_ids(self, prefix: str) -> list[str]:
        return self._call(
            "open_ids",
            lambda: [
                name
                for name, found in self._brokers.names.items()
                if name.startswith(prefix) and found.state == "open"
            ],
        )


class Call:
    """Each call of a process: others go on before and after it, or it is its last."""

    def __init__(self, world: "World", process: "Process") -> None:
        self._world = world
        self._process = process

    def __call__(self, name: str, do: Callable[..., T]) -> T:
        fate = self._world.fate(self._process, name)
        # Either the process dies, or it is told that there was no answer.
        error = ClientError("no answer") if fate.startswith("unanswered") else DiedError()
        if fate.endswith("late"):
            # It is on its way while whoever sent it has given up, or is no more.
            self._world.late.append(do)
        if fate.endswith(("before", "late")):
            raise error
        self._process.pause()
        result = do()
        self._process.pause()
        if fate.endswith("after"):
            raise error
        return result


def closed_gate() -> threading.Lock:
    """A lock that one thread opens for another; takes half the time of an event."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Process:
    """A thread that runs only while the scheduler lets it."""

    def __init__(self, world: "World", name: str, body: Callable[["Process"], None]) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.is_zombie = False
        self._body = body
        self._go = closed_gate()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.is_dead:
                self._body(self)
        except DiedError:
            pass
        finally:
            self.is_dead = True
            self.world.back.release()

    def pause(self) -> None:
        """Let others go on; DiedError if one is killed meanwhile."""
        if threading.current_thread() is not self._thread:
            return
        self.world.back.release()
        self._go.acquire()
        if self.is_dead:
            raise DiedError

    def resume(self) -> None:
        self._go.release()
        self.world.back.acquire()


@dataclass(frozen=True, kw_only=True)
class Chances:
    """How often what goes wrong, while things go wrong at all."""

    die: float = 0.0
    die_at: int = -1
    """The call, counted over all processes, at which one dies for certain."""
    die_how: str = "before"
    speculate: float = 0.0
    outlive: float = 0.0
    """That a task lives on when its driver is dead, or a driver when it is taken for dead."""
    compact: float = 0.0
    late: float = 0.05


class World:
    """A query of `batches` over `parts`, started again and again until it is through."""

    def __init__(
        self,
        seed: int,
        chances: Chances,
        *,
        batches: int = 3,
        parts: int = 2,
        runs_max: int = 60,
        is_versioned: bool = False,
        is_alone: bool = False,
    ) -> None:
        self.is_versioned = is_versioned
        """Each batch is a table with a version, as foreachBatch writes it."""
        self.is_alone = is_alone
        """Each of these is a run of its own, as outside of a stream."""
        self.rng = random.Random(seed)
        self.chances = chances
        self.batches, self.parts, self.runs_max = batches, parts, runs_max
        self.brokers = Brokers()
        self.done_batches = 0
        """What Spark's own checkpoint says."""
        self.late: list[Callable[[], object]] = []
        self.back = closed_gate()
        self.calls: list[str] = []
        self.faults_left = 12
        self.processes: list[Process] = []
        self.attempts = itertools.count()
        self.writers = itertools.count()

    # -- what goes wrong

    def fate(self, process: Process, name: str) -> str:
        number = len(self.calls)
        self.calls.append(f"{process.name} {name}")
        if number == self.chances.die_at:
            self.faults_left -= 1
            return self.chances.die_how
        if self.faults_left > 0 and self.rng.random() < self.chances.die:
            self.faults_left -= 1
            return self.rng.choice(FATES)
        return ""

    # -- Spark

    def rows(self, batch: int, part: int) -> list[Row]:
        """Some parts are empty, as filters leave them."""
        return [(batch, part, n) for n in range((batch + part) % 3)]

    def run(self) -> None:
        for number in range(self.runs_max):
            if self.done_batches >= self.batches:
                break
            self._run_once(f"run{number}")
        else:
            raise AssertionError("the query never gets through")
        self.finish_zombies()

    def _run_once(self, run: str) -> None:
        driver = Process(self, run, lambda process: self._driver(process, run))
        self.processes.append(driver)
        patience = self.rng.randint(20, 400)
        while not driver.is_dead:
            self._turn()
            patience -= 1
            if patience <= 0 and self.faults_left > 0 and self.rng.random() < self.chances.outlive:
                # Taken for dead; its successor is started beside it.
                self.faults_left -= 1
                driver.is_zombie = True
                return
        self._orphan(run)

    def _orphan(self, run: str) -> None:
        """The driver is dead: its tasks die with it, or live on."""
        for process in self.processes:
            if process.name.startswith(f"{run}/") and not process.is_dead:
                if self.rng.random() < self.chances.outlive:
                    process.is_zombie = True
                else:
                    self._kill(process)

    def _kill(self, process: Process) -> None:
        process.is_dead = True
        process.resume()

    def _turn(self) -> None:
        """One process goes one step, or something that was on its way arrives."""
        if self.late and self.rng.random() < self.chances.late:
            self._arrive()
        if self.brokers.log and self.rng.random() < self.chances.compact:
            self.brokers.compact(self.rng.randint(0, self.brokers.end))
        alive = [process for process in self.processes if not process.is_dead]
        if alive:
            self.rng.choice(alive).resume()
        self.processes = [process for process in self.processes if not process.is_dead]

    def _arrive(self) -> None:
        do = self.late.pop(self.rng.randrange(len(self.late)))
        try:
            do()
        except FencedError:
            return

    def finish_zombies(self) -> None:
        """Let all come to an end that is still under way, and arrive what is."""
        for _ in range(20_000):
            while self.late:
                self._arrive()
            if not any(not process.is_dead for process in self.processes):
                return
            self._turn()
        raise AssertionError("a process never ends")

    def _driver(self, process: Process, run: str) -> None:
        port = ModelPort(self.brokers, Call(self, process))
        while (batch := self.done_batches) < self.batches:
            done: dict[int, TaskResult] = {}
            writer = run
            if self.is_versioned and self.is_alone:
                writer = f"{run}/{next(self.writers)}"
            commit = protocol.commit_version if self.is_versioned else protocol.commit_batch
            try:
                self._tasks(process, writer, batch, done)
                commit(port, list(done.values()), batch)
            except ClientError:
                # As Spark does it: also if it was the commit that failed.
                with suppress(ClientError):
                    self._abort(port, list(done.values()), batch)
                if self.is_versioned and self.rng.random() < 0.5:
                    # Whoever wrote the function catches errors, and tries again.
                    continue
                return
            process.pause()
            fate = self.fate(process, "commit of Spark")
            if fate and fate != "after":
                raise DiedError
            # Of two runs that want to note the same batch, one is told so and ends.
            if self.done_batches != batch:
                return
            self.done_batches = batch + 1

    def _abort(self, port: ModelPort, done: list[TaskResult], batch: int) -> None:
        if self.is_versioned:
            protocol.abort_version(port, done)
        else:
            protocol.abort_batch(port, done, batch)

    def _tasks(self, driver: Process, run: str, batch: int, done: dict[int, TaskResult]) -> None:
        """Raises ClientError when a part failed four times."""
        failed: dict[int, int] = dict.fromkeys(range(self.parts), 0)
        running: dict[int, list[Process]] = {part: [] for part in range(self.parts)}
        started: dict[int, int] = dict.fromkeys(range(self.parts), 0)
        while len(done) < self.parts:
            for part in range(self.parts):
                alive = [process for process in running[part] if not process.is_dead]
                if part in done:
                    continue
                if not alive and started[part]:
                    failed[part] += 1
                    if failed[part] >= 4:
                        raise ClientError(f"part {part} failed too often")
                is_speculated = (
                    self.faults_left > 0
                    and len(alive) == 1
                    and self.rng.random() < self.chances.speculate
                )
                if not alive or is_speculated:
                    alive.append(self._attempt(run, batch, part, done))
                    started[part] += 1
                running[part] = alive
            driver.pause()

    def _attempt(self, run: str, batch: int, part: int, done: dict[int, TaskResult]) -> Process:
        task = TaskAttempt(
            query=QUERY,
            run=run,
            batch=batch,
            number=part,
            attempt=next(self.attempts),
            is_versioned=self.is_versioned,
        )

        def body(process: Process) -> None:
            port = ModelPort(self.brokers, Call(self, process))

            def write(begin: Begin) -> bool:
                # Each attempt in an order of its own: two in one transaction would lose rows.
                rows = sorted(self.rows(batch, part), reverse=bool(task.attempt % 2))
                for sequence, row in enumerate(rows):
                    port.write(begin(("out", 0)), row, sequence)
                return bool(rows)

            try:
                told = protocol.run_task(port, task, write)
            except ClientError:
                return
            # The first to tell is the one that counts; the others are never heard of.
            done.setdefault(part, told)

        process = Process(self, f"{run}/{batch}/{part}/{task.attempt}", body)
        self.processes.append(process)
        return process

    # -- what must have come of it

    def check(self) -> None:
        wanted = sorted(
            row
            for batch in range(self.batches)
            for part in range(self.parts)
            for row in self.rows(batch, part)
        )
        found = sorted(self.brokers.committed)
        assert found == wanted, f"{found} instead of {wanted}; the calls were {self.calls}"

    def open_names(self) -> list[str]:
        return [name for name, found in self.brokers.names.items() if found.state == "open"]
