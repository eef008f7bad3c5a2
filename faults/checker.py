"""The verdict: reads what clients did and saw, and finds what a log must never do.

A program of its own that knows nothing of the broker: the standard library is all it imports. The
rules are those of Jepsen's kafka workload. A history is JSON lines, one file per client or all in
one; the order of lines counts within a client only.

    {"op": "send", "p": "p1", "n": 0, "tp": "orders/2", "at": 5}       n counts up per producer
    {"op": "ack", "p": "p1", "n": 0, "o": 17, "at": 9}                 o: -1 if unknown
    {"op": "fail", "p": "p1", "n": 0, "at": 9}                         surely not written
    {"op": "unknown", "p": "p1", "n": 0, "at": 9}                      perhaps written
    {"op": "poll", "c": "c1", "tp": "orders/2", "r": [[17, "p1:0"]]}   offsets with values
    {"op": "assign", "c": "c1"}                                        positions start again
    {"op": "bounds", "tp": "orders/2", "start": 0, "end": 18, "expires": false, "at": 12}
    {"op": "end", "tp": "orders/2", "start": 0, "end": 18, "c": "c1"}  all of it has been read
    {"op": "commit", "g": "g1", "tp": "orders/2", "o": 18}             a group's, acked
    {"op": "group", "g": "g1", "tp": "orders/2", "o": 18}              what it has committed at last
    {"op": "txn", "t": "t1", "outcome": "commit"}                      or "abort", "unknown"

The value of a send is its producer and number (`p1:0`), so that every record tells where it is
from. A send of a transaction has its id as "t", a poll of a group's member its group as "g". Bounds
were asked for at "asked", if present, and returned at "at". A send to a compacted topic has its
key as "k", and "z" if it removes the key: then only the last of each key must be there, in whatever
was read to its end, and nothing that came before; such sends come before what was polled. Other
operations ("x-fault") are
passed over if they start with "x-".
"""

import argparse
import gc
import json
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

EXAMPLES_MAX = 10
_LINES_AT_ONCE = 1_000

_PENDING, _ACKED, _FAILED, _UNKNOWN = range(4)
_OUTCOMES = {"ack": _ACKED, "fail": _FAILED, "unknown": _UNKNOWN}


class Anomaly(StrEnum):
    """What can be wrong with a history."""

    LOST = "lost write"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    INCONSISTENT = "inconsistent offsets"
    REORDERED = "reordering"
    ABORTED_READ = "aborted read"
    TORN = "torn transaction"
    NONMONOTONIC = "non-monotonic poll"
    SKIPPED = "skipped by a poll"
    PHANTOM = "phantom"
    GAP = "offset gap"
    BACKWARDS = "bounds went back"
    UNCOMMITTED = "read past the end"
    COMMIT = "commit went back"
    STALE = "stale value"


class HistoryError(Exception):
    """The history itself is broken: no verdict."""


@dataclass(slots=True)
class Verdict:
    """What a history shows."""

    sends: int = 0
    acked: int = 0
    failed: int = 0
    unknown: int = 0
    records_polled: int = 0
    records_distinct: int = 0
    expired: int = 0
    """Acked and gone, as retention and compaction may do."""
    found: dict[Anomaly, int] = field(default_factory=dict)
    examples: dict[Anomaly, list[str]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not self.found

    def count(self, anomaly: Anomaly) -> int:
        return self.found.get(anomaly, 0)

    def add(self, anomaly: Anomaly, example: str, times: int = 1) -> None:
        self.found[anomaly] = self.found.get(anomaly, 0) + times
        reported = self.examples.setdefault(anomaly, [])
        if len(reported) < EXAMPLES_MAX:
            reported.append(example)


class _Producer:
    """The sends of one producer, by number."""

    __slots__ = ("keys", "offsets", "outcomes", "partitions", "removals", "transactions")

    def __init__(self) -> None:
        self.partitions: list[str] = []
        self.outcomes = bytearray()
        self.offsets: list[int] = []
        self.transactions: dict[int, str] = {}
        self.keys: dict[int, str] = {}
        self.removals: set[int] = set()


class _Partition:
    """What is known of one partition."""

    __slots__ = ("bounds", "compacts", "end", "expires", "last", "log", "polls", "start")

    def __init__(self) -> None:
        self.log: dict[int, str] = {}
        self.start = 0
        self.end: int | None = None
        """Set once it was read to the end."""
        self.expires = False
        self.bounds: list[tuple[int, int, int, int]] = []
        """When returned, start, end, when asked for."""
        self.polls: list[tuple[int, int]] = []
        """When, and the highest offset."""
        self.compacts = False
        self.last: dict[str, int] = {}
        """Where each key was seen or acked last, if it compacts; known once all events are."""


class Checker:
    """Takes a history in, event by event; `verdict` looks at the whole of it, once."""

    def __init__(self) -> None:
        self._verdict = Verdict()
        self._producers: dict[str, _Producer] = {}
        self._partitions: dict[str, _Partition] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._positions: dict[str, dict[str, int]] = {}
        self._jumps: list[tuple[str, str, int, int]] = []
        self._transactions: dict[str, str] = {}
        self._given: dict[tuple[str, str], set[int]] = {}
        """Offsets that members of a group have polled, by group and partition."""
        self._commits: dict[tuple[str, str], int] = {}
        self._committed: dict[tuple[str, str], int] = {}
        self._ack_times: dict[str, int] = {}
        """Of sends that have a key."""
        self._reads: list[tuple[str, str, int]] = []
        """Who read which partition to its end, and since when."""
        self._polled: dict[tuple[str, str], set[int]] = {}
        """Offsets of a compacted partition that each consumer got."""

    def add(self, event: Mapping[str, Any]) -> None:
        """Raises HistoryError if the event cannot be."""
        try:
            self._add(event)
        except (KeyError, TypeError, ValueError) as error:
            raise HistoryError(f"not an event of a history: {event!r} ({error!r})") from None

    def _add(self, event: Mapping[str, Any]) -> None:
        operation = event["op"]
        if operation == "send":
            self._add_send(event)
        elif operation in _OUTCOMES:
            self._add_outcome(event, _OUTCOMES[operation])
        elif operation == "poll":
            self._add_poll(event)
        elif operation == "assign":
            self._positions.pop(event["c"], None)
        elif operation in ("bounds", "end"):
            self._add_bounds(event, ended=operation == "end")
        elif operation == "commit":
            key = (event["g"], event["tp"])
            self._commits[key] = max(self._commits.get(key, 0), int(event["o"]))
        elif operation == "group":
            self._committed[event["g"], event["tp"]] = int(event["o"])
        elif operation == "txn":
            if event["outcome"] not in ("commit", "abort", "unknown"):
                raise ValueError("no outcome of a transaction")
            self._transactions[event["t"]] = event["outcome"]
        elif not operation.startswith("x-"):
            raise ValueError("unknown operation")

    def _partition(self, name: str) -> _Partition:
        found = self._partitions.get(name)
        if found is None:
            found = self._partitions[name] = _Partition()
        return found

    def _add_send(self, event: Mapping[str, Any]) -> None:
        producer = self._producers.get(event["p"])
        if producer is None:
            producer = self._producers[event["p"]] = _Producer()
        number = len(producer.partitions)
        if event["n"] != number:
            raise ValueError(f"the next send of this producer is number {number}")
        producer.partitions.append(event["tp"])
        producer.outcomes.append(_PENDING)
        producer.offsets.append(-1)
        if (transaction := event.get("t")) is not None:
            producer.transactions[number] = transaction
            self._transactions.setdefault(transaction, "unknown")
        if (key := event.get("k")) is not None:
            self._partition(event["tp"]).compacts = True
            producer.keys[number] = key
            if event.get("z"):
                producer.removals.add(number)

    def _add_outcome(self, event: Mapping[str, Any], outcome: int) -> None:
        producer, number = self._producers[event["p"]], event["n"]
        if not 0 <= number < len(producer.outcomes):
            raise ValueError("an outcome without a send")
        if producer.outcomes[number] != _PENDING:
            raise ValueError("a second outcome of one send")
        producer.outcomes[number] = outcome
        if outcome == _ACKED:
            producer.offsets[number] = event["o"]
            if number in producer.keys:
                self._ack_times[f"{event['p']}:{number}"] = int(event.get("at", 0))

    def _add_poll(self, event: Mapping[str, Any]) -> None:
        name, consumer, records = event["tp"], event["c"], event["r"]
        partition = self._partition(name)
        log, places, verdict = partition.log, self._places, self._verdict
        if "at" in event and records:
            partition.polls.append((int(event["at"]), max(offset for offset, _ in records)))
        if "g" in event:
            given = self._given.setdefault((event["g"], name), set())
            given.update(offset for offset, _ in records)
        if partition.compacts:
            polled = self._polled.setdefault((consumer, name), set())
            polled.update(offset for offset, _ in records)
        positions = self._positions.setdefault(consumer, {})
        last = positions.get(name)
        verdict.records_polled += len(records)
        for offset, value in records:
            if last is not None and offset != last + 1:
                if offset <= last:
                    verdict.add(
                        Anomaly.NONMONOTONIC, f"{consumer} got {name}@{offset} after {last}"
                    )
                else:
                    self._jumps.append((consumer, name, last, offset))
            last = offset
            known = log.get(offset)
            if known == value:
                continue
            if known is not None:
                verdict.add(Anomaly.INCONSISTENT, f"{name}@{offset} was {known} and {value}")
                continue
            log[offset] = value
            if value in places:
                verdict.add(Anomaly.DUPLICATE, f"{value} at {places[value]} and {(name, offset)}")
            else:
                places[value] = (name, offset)
        if last is not None:
            positions[name] = last

    def _add_bounds(self, event: Mapping[str, Any], *, ended: bool) -> None:
        partition = self._partition(event["tp"])
        start, end = int(event["start"]), int(event["end"])
        at = int(event.get("at", 0))
        partition.bounds.append((at, start, end, int(event.get("asked", at))))
        partition.expires = partition.expires or bool(event.get("expires"))
        if ended:
            partition.start = max(partition.start, start)
            partition.end = max(partition.end or 0, end)
            if "c" in event:
                self._reads.append((event["c"], event["tp"], int(event.get("asked", at))))

    def verdict(self) -> Verdict:
        """Of everything that was added; nothing may be added after it."""
        verdict = self._verdict
        verdict.records_distinct = len(self._places)
        self._find_last()
        for name, producer in self._producers.items():
            self._check_sends(name, producer)
        for name, partition in self._partitions.items():
            self._check_partition(name, partition)
        self._check_phantoms()
        self._check_jumps()
        self._check_groups()
        self._check_transactions()
        self._check_keys()
        return verdict

    def _send_of(self, value: str) -> tuple[_Producer, int] | None:
        """What the record is from; None if nobody sent it."""
        name, _, number = value.rpartition(":")
        producer = self._producers.get(name)
        if producer is None or not number.isdecimal() or int(number) >= len(producer.partitions):
            return None
        return producer, int(number)

    def _find_last(self) -> None:
        for partition in self._partitions.values():
            for offset, value in partition.log.items() if partition.compacts else ():
                if (sent := self._send_of(value)) and (key := sent[0].keys.get(sent[1])):
                    partition.last[key] = max(offset, partition.last.get(key, -1))
        for producer in self._producers.values():
            for number, key in producer.keys.items():
                last = self._partition(producer.partitions[number]).last
                # One that was acked and not seen removes its key, or is missed by itself.
                last[key] = max(producer.offsets[number], last.get(key, -1))

    def _may_be_gone(self, partition: _Partition, value: str, offset: int) -> bool:
        """Whether compaction may have taken it: it removes its key, or there is a later one."""
        sent = self._send_of(value)
        if not partition.compacts or sent is None:
            return False
        producer, number = sent
        key = producer.keys.get(number, "")
        return number in producer.removals or offset < partition.last.get(key, -1)

    def _check_keys(self) -> None:
        """A reader of a compacted partition to its end has the last of each key, or a later one.

        One that was removed is not there at all: no earlier value of it came back.
        """
        acked: dict[str, dict[str, list[tuple[int, int, str, bool]]]] = {}
        for name, producer in self._producers.items():
            for number, key in producer.keys.items():
                if producer.outcomes[number] == _ACKED:
                    value, offset = f"{name}:{number}", producer.offsets[number]
                    entry = (offset, self._ack_times[value], value, number in producer.removals)
                    keys = acked.setdefault(producer.partitions[number], {})
                    keys.setdefault(key, []).append(entry)
        for consumer, name, since in self._reads:
            found = self._last_polled(consumer, name)
            for key, entries in acked.get(name, {}).items():
                before = [entry for entry in entries if entry[1] <= since]
                if before:
                    offset, _, value, is_removal = max(before)
                    self._judge_key(consumer, name, (key, offset, value), found, is_removal)

    def _last_polled(self, consumer: str, name: str) -> dict[str, int]:
        log, found = self._partition(name).log, dict[str, int]()
        for offset in self._polled.get((consumer, name), ()):
            if (sent := self._send_of(log[offset])) and (key := sent[0].keys.get(sent[1])):
                found[key] = max(offset, found.get(key, -1))
        return found

    def _judge_key(
        self,
        consumer: str,
        name: str,
        last: tuple[str, int, str],
        found: Mapping[str, int],
        is_removal: bool,
    ) -> None:
        key, offset, value = last
        seen = found.get(key)
        if seen is not None and seen < offset:
            text = f"{consumer} has {key} of {name}@{seen}, {value} at {offset} was acked"
            self._verdict.add(Anomaly.STALE, text)
        elif seen is None and not is_removal:
            self._verdict.add(Anomaly.LOST, f"{consumer} lacks {key}: {value} at {name}@{offset}")

    def _check_sends(self, name: str, producer: _Producer) -> None:
        verdict, places = self._verdict, self._places
        verdict.sends += len(producer.outcomes)
        verdict.acked += producer.outcomes.count(_ACKED)
        verdict.failed += producer.outcomes.count(_FAILED)
        verdict.unknown += producer.outcomes.count(_UNKNOWN) + producer.outcomes.count(_PENDING)
        for number, outcome in enumerate(producer.outcomes):
            if outcome == _ACKED:
                partition, offset = producer.partitions[number], producer.offsets[number]
                value = f"{name}:{number}"
                place = places.get(value)
                if place is None:
                    self._judge_unread(producer, number, value)
                elif offset >= 0 and place != (partition, offset):
                    verdict.add(
                        Anomaly.INCONSISTENT,
                        f"{value} was acked at {partition}@{offset} and read at {place}",
                    )
            elif outcome == _FAILED and (value := f"{name}:{number}") in places:
                verdict.add(Anomaly.ABORTED_READ, f"{value} failed and was read: {places[value]}")

    def _judge_unread(self, producer: _Producer, number: int, value: str) -> None:
        transaction = producer.transactions.get(number)
        if transaction is not None and self._transactions[transaction] != "commit":
            return
        name, offset = producer.partitions[number], producer.offsets[number]
        partition = self._partition(name)
        is_expired = partition.expires and 0 <= offset < partition.start
        if is_expired or self._may_be_gone(partition, value, offset):
            self._verdict.expired += 1
        elif partition.end is not None or offset < max(partition.log, default=-1):
            self._verdict.add(Anomaly.LOST, f"{value} was acked at {name}@{offset}")
        else:
            self._verdict.add(Anomaly.UNSEEN, f"{value} was acked at {name}@{offset}")

    def _check_partition(self, name: str, partition: _Partition) -> None:
        verdict = self._verdict
        last: dict[str, int] = {}
        for offset in sorted(partition.log):
            value = partition.log[offset]
            if self._places[value] != (name, offset):
                continue
            producer, _, number = value.rpartition(":")
            if not number.isdecimal():
                continue
            if last.get(producer, -1) > int(number):
                verdict.add(
                    Anomaly.REORDERED,
                    f"{value} at {name}@{offset} comes after {producer}:{last[producer]}",
                )
            last[producer] = int(number)
        if partition.end is not None and not self._transactions and not partition.compacts:
            missing = partition.end - partition.start
            missing -= sum(partition.start <= offset < partition.end for offset in partition.log)
            if missing:
                bounds = f"[{partition.start}, {partition.end})"
                verdict.add(Anomaly.GAP, f"{missing} offsets of {name} in {bounds}", missing)
        previous = (0, 0)
        for _, start, end, _ in sorted(partition.bounds):
            if start < previous[0] or end < previous[1]:
                verdict.add(Anomaly.BACKWARDS, f"{name}: {previous} became {(start, end)}")
            previous = (start, end)

        self._check_ends(name, partition)

    def _check_ends(self, name: str, partition: _Partition) -> None:
        """What was read stays: an end that is returned later is never below it."""
        polls = sorted(partition.polls)
        highest, seen = -1, 0
        for asked, end in sorted((bounds[3], bounds[2]) for bounds in partition.bounds):
            while seen < len(polls) and polls[seen][0] < asked:
                highest = max(highest, polls[seen][1])
                seen += 1
            if highest >= end:
                self._verdict.add(
                    Anomaly.UNCOMMITTED, f"{name}@{highest} was read before the end was {end}"
                )

    def _check_groups(self) -> None:
        """A group's commits last, and all that they cover was given to one of its members."""
        for (group, name), last in self._committed.items():
            acked = self._commits.get((group, name), 0)
            if last < acked:
                self._verdict.add(
                    Anomaly.COMMIT, f"{group}: {acked} of {name} was acked, {last} is there"
                )
            given = self._given.get((group, name), set())
            start = self._partition(name).start if self._partition(name).expires else 0
            missed = [offset for offset in range(start, last) if offset not in given]
            if missed:
                self._verdict.add(
                    Anomaly.SKIPPED,
                    f"{group} committed {name}@{last} and never got {missed[:3]}",
                    len(missed),
                )

    def _check_phantoms(self) -> None:
        for value, (partition, offset) in self._places.items():
            name, _, number = value.rpartition(":")
            producer = self._producers.get(name)
            if (
                producer is None
                or not number.isdecimal()
                or int(number) >= len(producer.partitions)
                or producer.partitions[int(number)] != partition
            ):
                self._verdict.add(
                    Anomaly.PHANTOM, f"{value} at {partition}@{offset} was never sent there"
                )

    def _check_jumps(self) -> None:
        offsets: dict[str, list[int]] = {}
        for consumer, name, last, offset in self._jumps:
            partition = self._partition(name)
            known = offsets.get(name)
            if known is None:
                known = offsets[name] = sorted(partition.log)
            first = max(last + 1, partition.start) if partition.expires else last + 1
            between = known[bisect_left(known, first) : bisect_left(known, offset)]
            missed = sum(not self._may_be_gone(partition, partition.log[o], o) for o in between)
            if missed > 0:
                self._verdict.add(
                    Anomaly.SKIPPED, f"{consumer} went from {name}@{last} to {offset}", missed
                )

    def _check_transactions(self) -> None:
        values: dict[str, list[str]] = {}
        for name, producer in self._producers.items():
            for number, transaction in producer.transactions.items():
                if producer.outcomes[number] != _FAILED:
                    values.setdefault(transaction, []).append(f"{name}:{number}")
        for transaction, sent in values.items():
            seen = [value for value in sent if value in self._places]
            if self._transactions[transaction] == "abort":
                for value in seen:
                    self._verdict.add(Anomaly.ABORTED_READ, f"{value} of aborted {transaction}")
            elif seen and len(seen) < len(sent):
                self._verdict.add(
                    Anomaly.TORN, f"{transaction}: {len(seen)} of {len(sent)} are there"
                )


def read_history(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The events of some files. Sends come before their outcomes as clients write them so."""
    for path in paths:
        with path.open("rb") as lines:
            number, is_whole = 0, True
            # Many lines at once are parsed in half of the time.
            while is_whole and (chunk := list(islice(lines, _LINES_AT_ONCE))):
                # A client that is at work, or was killed, leaves the last line half written.
                if not chunk[-1].endswith(b"\n"):
                    chunk.pop()
                    is_whole = False
                try:
                    yield from json.loads(b"[%s]" % b",".join(chunk))
                except ValueError as error:
                    place = f"{path}, lines {number + 1} to {number + len(chunk)}"
                    raise HistoryError(f"{place}: {error}") from None
                number += len(chunk)


def check(events: Iterable[Mapping[str, Any]]) -> Verdict:
    """The verdict on a history."""
    checker = Checker()
    collecting = gc.isenabled()
    # Millions of small objects, none in a cycle: looking for cycles would take half of the time.
    gc.disable()
    try:
        for event in events:
            checker.add(event)
        return checker.verdict()
    finally:
        if collecting:
            gc.enable()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m faults.checker", description="Judges recorded histories."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        verdict = check(read_history(options.files))
    except (HistoryError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(verdict), indent=2))
    return 0 if verdict.clean else 1


if __name__ == "__main__":
    sys.exit(main())
