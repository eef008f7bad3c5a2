"""A producer of transactions that also sends what is late, with all of it on record.

    python -m faults.transactor write  --bootstrap A --topic T --partitions 6 --name p1 --history F
    python -m faults.transactor stable --bootstrap A --topic T --partitions 6 --name s1 --history F

`write` runs until SIGTERM: transactions over several partitions, some of which it aborts. Once the
next one is under way it repeats the end of the one before, the other end of it, and its writes, as
if they had been held up: each must be refused ("x-late"). While the file --hold is there it waits
before it ends a transaction ("x-held"). With --old it speaks as clients do that know no version 2
of transactions, and repeats nothing. `stable` waits until no open transaction holds readers back.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from faults.clients import EXIT_UNREAD, History, Stop
from faults.wire import RISING, GaveUpError, Producer, Wire
from moldau.model.errors import ErrorCode

_TRY_SECONDS_MAX: Final = 60.0
_LATE_SECONDS_MAX: Final = 5.0
_HOLD_SECONDS_MAX: Final = 6.0
_ABORT_CHANCE: Final = 0.25
_LATE_CHANCE: Final = 0.5
_PARTITIONS_EACH: Final = 3
_RECORDS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A transaction that is over, for what comes late of it."""

    producer: Producer
    name: str
    partition: int
    names: list[str]
    """Of the records of its first batch there."""


class Transactor:
    """One transactional id, and its transactions one after another."""

    def __init__(self, options: argparse.Namespace, history: History) -> None:
        self._options = options
        self._history = history
        self._rng = random.Random(options.name)
        self._wire = Wire(options.bootstrap, options.topic, options.name)
        self._producer = self._wire.init(_TRY_SECONDS_MAX)
        self._sends = 0
        self._count = 0
        self._sequences: dict[int, int] = {}
        self._last: Ended | None = None

    def turn(self) -> None:
        """One transaction, to its end."""
        self._count += 1
        transaction = f"{self._options.name}-{self._count}"
        partitions = self._rng.sample(range(self._options.partitions), _PARTITIONS_EACH)
        is_open, sent = True, {}
        for partition in partitions:
            sent[partition] = [
                self._send(partition, transaction)
                for _ in range(self._rng.randint(1, _RECORDS_MAX))
            ]
            is_open = self._write(partition, sent[partition])
            if not is_open:
                break
            if self._last is not None:
                # Only now: before the next one is under way an end may be asked for twice.
                last, self._last = self._last, None
                self._send_late(last)
        if not is_open:
            self._restart(transaction, "abort")
            return
        self._hold()
        ended = Ended(
            producer=self._producer,
            name=transaction,
            partition=partitions[0],
            names=sent[partitions[0]],
        )
        self._end(transaction, ended)

    def _send(self, partition: int, transaction: str) -> str:
        """Put a send on record; the name of its record."""
        name, number = self._options.name, self._sends
        self._sends += 1
        place = f"{self._options.topic}/{partition}"
        self._history.add("send", p=name, n=number, tp=place, t=transaction)
        return f"{name}:{number}"

    def _reported(self, outcome: str, record: str, **fields: object) -> None:
        name, _, number = record.rpartition(":")
        self._history.add(outcome, p=name, n=int(number), **fields)

    def _write(self, partition: int, names: list[str]) -> bool:
        """Whether it was taken; otherwise the transaction is over."""
        sequence = self._sequences.get(partition, 0)
        try:
            if self._options.old and not self._add(partition):
                return False
            answer = self._wire.produce(
                self._producer,
                partition,
                names,
                sequence=sequence,
                size=self._options.size,
                version=11 if self._options.old else 12,
                seconds_max=_TRY_SECONDS_MAX,
            )
        except GaveUpError:
            return False
        if answer.code not in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._history.add("x-refused", code=answer.code, what="produce")
            return False
        self._sequences[partition] = sequence + len(names)
        place = f"{self._options.topic}/{partition}"
        for index, record in enumerate(names):
            offset = answer.number + index if answer.number >= 0 else -1
            self._reported("ack", record, o=offset, tp=place)
        self._history.flush()
        return True

    def _add(self, partition: int) -> bool:
        code = self._wire.add(self._producer, partition, _TRY_SECONDS_MAX).code
        if code:
            self._history.add("x-refused", code=code, what="add")
        return code == 0

    def _hold(self) -> None:
        hold: Path | None = self._options.hold
        if hold is None or not hold.exists():
            return
        self._history.add("x-held")
        self._history.flush()
        deadline = time.monotonic() + _HOLD_SECONDS_MAX
        while hold.exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _end(self, transaction: str, ended: Ended) -> None:
        is_commit = self._rng.random() >= _ABORT_CHANCE
        version = 4 if self._options.old else RISING
        try:
            answer = self._wire.end(
                self._producer, is_commit=is_commit, version=version, seconds_max=_TRY_SECONDS_MAX
            )
        except GaveUpError:
            self._restart(transaction, "unknown" if is_commit else "abort")
            return
        if answer.code:
            self._history.add("x-refused", code=answer.code, what="end")
            self._restart(transaction, "unknown" if is_commit else "abort")
            return
        self._history.add("txn", t=transaction, outcome="commit" if is_commit else "abort")
        self._history.flush()
        if not self._options.old:
            self._producer = self._producer._replace(epoch=answer.number)
            self._sequences.clear()
            self._last = ended

    def _restart(self, transaction: str, outcome: str) -> None:
        """As a producer that failed: whatever is open is aborted."""
        self._history.add("txn", t=transaction, outcome=outcome)
        self._producer = self._wire.init(_TRY_SECONDS_MAX)
        self._sequences.clear()
        self._last = None

    def _send_late(self, last: Ended) -> None:
        """What was held up of the transaction before arrives now."""
        if self._rng.random() > _LATE_CHANCE:
            return
        try:
            for is_commit in (True, False):
                answer = self._wire.end(
                    last.producer,
                    is_commit=is_commit,
                    version=RISING,
                    seconds_max=_LATE_SECONDS_MAX,
                )
                self._history.add("x-late", what="end", code=answer.code)
            new = self._send(last.partition, f"{last.name}-late")
            self._history.add("txn", t=f"{last.name}-late", outcome="abort")
            # Its first batch once more, and one that never came through.
            for sequence, names in ((0, last.names), (len(last.names), [new])):
                answer = self._wire.produce(
                    last.producer,
                    last.partition,
                    names,
                    sequence=sequence,
                    size=self._options.size,
                    version=12,
                    seconds_max=_LATE_SECONDS_MAX,
                )
                self._history.add("x-late", what="produce", code=answer.code)
            if answer.code:
                self._reported("fail", new)
        except GaveUpError:
            return

    def close(self) -> None:
        self._wire.close()


def write(options: argparse.Namespace, history: History, stop: Stop) -> int:
    transactor = Transactor(options, history)
    period = 1 / options.rate
    while not stop.asked:
        transactor.turn()
        history.flush()
        time.sleep(period)
    transactor.close()
    return 0


def await_stable(options: argparse.Namespace, history: History, stop: Stop) -> int:
    """Put on record where readers of what is committed get, and where the partitions end."""
    wire = Wire(options.bootstrap, options.topic, options.name)
    deadline = time.monotonic() + options.seconds
    ends: dict[int, tuple[int, int]] = {}
    while not stop.asked:
        for partition in range(options.partitions):
            stable, end = (
                wire.end_offset(partition, stable=is_stable, seconds_max=options.seconds)
                for is_stable in (True, False)
            )
            ends[partition] = (stable, end)
        if all(stable == end for stable, end in ends.values()) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    wire.close()
    history.add("x-stable", ends=list(ends.values()))
    return 0 if all(stable == end for stable, end in ends.values()) else EXIT_UNREAD


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.transactor", description=__doc__)
    parser.add_argument("role", choices=["write", "stable"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=50.0, help="transactions/s at most")
    parser.add_argument("--size", type=int, default=200, help="bytes of a record")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--hold", type=Path)
    parser.add_argument("--old", action="store_true", help="before version 2 of transactions")
    options = parser.parse_args(arguments)
    stop = Stop()
    with options.history.open("a") as file:
        history = History(file)
        if options.role == "stable":
            return await_stable(options, history, stop)
        return write(options, history, stop)


if __name__ == "__main__":
    sys.exit(main())
