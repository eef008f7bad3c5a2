"""An application that consumes, transforms and produces in transactions, and a crew of them.

    python -m faults.worker crew --bootstrap A --topic IN --output OUT --partitions 6 --history F
    python -m faults.worker work --bootstrap A --topic IN --output OUT --partitions 6 --history F
    python -m faults.worker wait --bootstrap A --topic IN --output OUT --partitions 6 --history F

`work` is one member of a group, unmodified librdkafka. It ends itself when nothing moves for long:
the library is known to hang in a transaction when brokers die, and operators of such applications
restarts them. `crew` does that, and until the file --calm is there it also lets members join, leave
and die all the time. Both run until SIGTERM; `wait` until the group has committed all of the input.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from faults.clients import (
    COMMON,
    EXIT_UNREAD,
    History,
    Stop,
    bounds_of,
    debug_settings,
    group_consumer,
    payload,
)
from faults.once import output_name

EXIT_HUNG: Final = 4
EXIT_FENCED: Final = 5
EXIT_DIED: Final = 6
EXIT_ORPHANED: Final = 7
_ENDS: Final = {EXIT_HUNG: "hung", EXIT_FENCED: "failed", EXIT_DIED: "died before a commit"}
_MOVES_SECONDS_MAX: Final = 12.0
_CALL_SECONDS_MAX: Final = 8.0
_BATCH_MAX: Final = 30
_SESSION: Final = {"session.timeout.ms": 3_000, "max.poll.interval.ms": 15_000}
"""Short, so that others soon go on with what was that of one that died."""
_DEATH_CHANCE: Final = 0.005
_PLAIN_DEATH_CHANCE: Final = 0.1
"""In each batch, before the position is committed."""
_END_SECONDS_MAX: Final = 15.0
_LOOK_SECONDS: Final = 0.1
_STORM_SECONDS: Final = 2.5
"""Between two changes of the crew, on average."""


class Watchdog:
    """Ends the process if nobody says for long that something moves."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._last = time.monotonic()
        self._main = threading.get_ident()
        self._parent = os.getppid()
        threading.Thread(target=self._watch, daemon=True).start()

    def moves(self) -> None:
        self._last = time.monotonic()

    def _watch(self) -> None:
        while time.monotonic() - self._last < _MOVES_SECONDS_MAX:
            time.sleep(0.2)
            if os.getppid() != self._parent:
                # The crew was killed, and nobody else would end this one.
                os._exit(EXIT_ORPHANED)
        frame = sys._current_frames().get(self._main)
        where = traceback.extract_stack(frame)[-1].line if frame else ""
        self._history.add("x-worker-hung", where=where)
        self._history.flush()
        # Not even a close: that may hang as well.
        os._exit(EXIT_HUNG)


class Worker:
    """One transaction after another, each with the positions of what it transforms."""

    def __init__(self, options: argparse.Namespace, history: History) -> None:
        self._options = options
        self._history = history
        self._watchdog = Watchdog(history)
        self._batch: list[Message] = []
        self._group: Any = None
        settings = {**COMMON, "bootstrap.servers": options.bootstrap, "linger.ms": 0}
        settings |= debug_settings(options)
        if not options.plain:
            settings |= {"transactional.id": options.name, "transaction.timeout.ms": 10_000}
        self._producer = Producer(settings)
        if not options.plain:
            self._producer.init_transactions(_CALL_SECONDS_MAX)
        self._watchdog.moves()
        self._consumer = group_consumer(options, **_SESSION)
        self._consumer.subscribe(
            [options.topic], on_assign=self._assigned, on_revoke=self._lost, on_lost=self._lost
        )

    def _assigned(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        # Of this generation and no later one: a late one is rejected.
        self._group = consumer.consumer_group_metadata()
        self._batch.clear()

    def _lost(self, _: Consumer, __: list[TopicPartition]) -> None:
        """Somebody else reads from what is committed on: what was read is not to be written."""
        self._batch.clear()

    def turn(self) -> None:
        self._watchdog.moves()
        while len(self._batch) < _BATCH_MAX:
            message = self._consumer.poll(0.05)
            if message is None:
                break
            if message.error() is None:
                self._batch.append(message)
        if not self._batch:
            return
        try:
            self._transform()
        except KafkaException as failure:
            self._go_back(failure.args[0])
        self._batch.clear()

    def _transform(self) -> None:
        if self._options.plain:
            offsets = self._write()
            self._producer.flush(_CALL_SECONDS_MAX)
            self._perhaps_die(_PLAIN_DEATH_CHANCE)
            self._consumer.commit(offsets=offsets, asynchronous=False)
        else:
            self._producer.begin_transaction()
            offsets = self._write()
            self._producer.send_offsets_to_transaction(offsets, self._group, _CALL_SECONDS_MAX)
            self._perhaps_die(_DEATH_CHANCE)
            self._commit()
        self._history.add("x-committed", count=len(self._batch))
        self._history.flush()

    def _perhaps_die(self, chance: float) -> None:
        """Where it hurts most: the outputs are there, and the position is not committed."""
        if random.random() < chance:
            self._history.add("x-died")
            self._history.flush()
            os._exit(EXIT_DIED)

    def _write(self) -> list[TopicPartition]:
        """The outputs of a batch; returns the positions after it."""
        positions: dict[tuple[str, int], int] = {}
        for message in self._batch:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if topic is None or partition is None or offset is None:
                continue
            positions[topic, partition] = offset + 1
            value = payload(output_name(partition, offset), self._options.size)
            self._producer.produce(self._options.output, value, partition=partition)
        return [TopicPartition(*place, offset) for place, offset in positions.items()]

    def _commit(self) -> None:
        while True:
            try:
                self._producer.commit_transaction(_CALL_SECONDS_MAX)
                return
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    raise

    def _go_back(self, error: KafkaError) -> None:
        """To what is committed; one that cannot even abort is over."""
        self._history.add("x-failed", error=error.name())
        self._history.flush()
        self._watchdog.moves()
        if self._options.plain or not (error.txn_requires_abort() or error.retriable()):
            os._exit(EXIT_FENCED)
        try:
            self._producer.abort_transaction(_CALL_SECONDS_MAX)
            self._watchdog.moves()
            for place in self._consumer.committed(self._consumer.assignment(), _CALL_SECONDS_MAX):
                offset = max(0, place.offset)
                self._consumer.seek(TopicPartition(place.topic, place.partition, offset))
        except KafkaException:
            os._exit(EXIT_FENCED)

    def close(self) -> None:
        self._watchdog.moves()
        self._consumer.close()


def work(options: argparse.Namespace, history: History, stop: Stop) -> int:
    try:
        worker = Worker(options, history)
    except KafkaException as error:
        history.add("x-failed", error=str(error))
        return EXIT_FENCED
    while not stop.asked:
        worker.turn()
    worker.close()
    return 0


class Crew:
    """Workers by their names; a missing one is replaced, under the same name."""

    def __init__(self, options: argparse.Namespace, history: History) -> None:
        self._options = options
        self._history = history
        self._rng = random.Random(options.seed)
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._leaving: dict[int, subprocess.Popen[bytes]] = {}
        self._wanted = options.count
        self._storm_at = time.monotonic() + _STORM_SECONDS
        self.done: Counter[str] = Counter()

    def look(self) -> None:
        for number, worker in list(self._workers.items()):
            if (code := worker.poll()) is not None:
                self.done[_ENDS.get(code, "ended")] += 1
                del self._workers[number]
        if not self._options.calm.exists() and time.monotonic() > self._storm_at:
            self._storm_at = time.monotonic() + self._rng.expovariate(1 / _STORM_SECONDS)
            self._storm()
        # One that leaves has its name until it is gone.
        self._leaving = {n: worker for n, worker in self._leaving.items() if worker.poll() is None}
        for number in range(1, self._wanted + 1):
            if number not in self._workers and number not in self._leaving:
                self._workers[number] = self._start(number)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        options, name = self._options, f"k{number}"
        self.done["started"] += 1
        command = [sys.executable, "-m", "faults.worker", "work", "--name", name]
        command += ["--bootstrap", options.bootstrap, "--topic", options.topic]
        command += ["--output", options.output, "--partitions", str(options.partitions)]
        command += ["--history", str(options.history.with_name(f"{name}.jsonl"))]
        command += ["--plain"] if options.plain else []
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def _storm(self) -> None:
        what = self._rng.choice(["leaves", "dies", "size"])
        if what == "size":
            self._wanted = self._rng.randint(2, self._options.count + 1)
            for number in [n for n in self._workers if n > self._wanted]:
                self._end(number, signal.SIGTERM)
        elif self._workers:
            number = self._rng.choice(sorted(self._workers))
            self._end(number, signal.SIGTERM if what == "leaves" else signal.SIGKILL)

    def _end(self, number: int, how: signal.Signals) -> None:
        self.done["killed" if how is signal.SIGKILL else "left"] += 1
        worker = self._workers.pop(number)
        worker.send_signal(how)
        self._leaving[number] = worker

    def close(self) -> None:
        workers = [*self._workers.values(), *self._leaving.values()]
        for worker in workers:
            worker.terminate()
        for worker in workers:
            try:
                worker.wait(_END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def run_crew(options: argparse.Namespace, history: History, stop: Stop) -> int:
    crew = Crew(options, history)
    while not stop.asked:
        crew.look()
        time.sleep(_LOOK_SECONDS)
    crew.close()
    history.add("x-crew", done=dict(crew.done))
    return 0


def await_group(options: argparse.Namespace, history: History, stop: Stop) -> int:
    """Until the group has committed where the input ends."""
    consumer = group_consumer(options)
    deadline = time.monotonic() + options.seconds
    ends = {key: high for key, (_, high) in bounds_of(consumer, options, deadline).items()}
    reached: dict[str, int] = {}
    asked = [TopicPartition(options.topic, partition) for partition in range(options.partitions)]
    while time.monotonic() < deadline and (reached != ends or not ends):
        try:
            found = consumer.committed(asked, timeout=5.0)
        except KafkaException:
            found = []
        reached = {f"{each.topic}/{each.partition}": max(0, each.offset) for each in found}
        time.sleep(0.2)
    history.add("x-reached", reached=reached, ends=ends)
    consumer.close()
    return 0 if reached == ends and len(ends) == options.partitions else EXIT_UNREAD


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.worker", description=__doc__)
    roles = {"work": work, "crew": run_crew, "wait": await_group}
    parser.add_argument("role", choices=list(roles))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--name", default="crew")
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--size", type=int, default=100, help="bytes of a record")
    parser.add_argument("--count", type=int, default=3, help="workers of a crew")
    parser.add_argument("--calm", type=Path, default=Path("calm"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--plain", action="store_true", help="no transactions: outputs may repeat")
    options = parser.parse_args(arguments)
    stop = Stop()
    with options.history.open("a") as file:
        return roles[options.role](options, History(file), stop)


if __name__ == "__main__":
    sys.exit(main())
