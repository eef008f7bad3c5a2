"""The record of one run: what was done, what clients saw, what came of it."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from faults.checker import Anomaly, Verdict, read_history

ROOT: Final = Path(__file__).resolve().parent.parent
TOPIC: Final = "faults"


class ScenarioError(Exception):
    """The scenario could not be carried out, so it shows nothing."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What a run showed."""

    verdict: Verdict = field(default_factory=Verdict)
    problems: list[str] = field(default_factory=list)
    """What was not as expected; empty for a run that passed."""
    proofs: list[str] = field(default_factory=list)
    """That the faults fired."""
    notes: list[str] = field(default_factory=list)
    unavailable_seconds: list[float] = field(default_factory=list)
    recoveries: list[tuple[int, float]] = field(default_factory=list)
    """Bytes in the data directory, and seconds from the start to ready."""
    faults: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the clients do meanwhile."""

    producers: int = 2
    consumers: int = 1
    members: int = 0
    """Of a consumer group that commits."""
    raw: bool = False
    """With a reader that looks at every reply."""
    partitions: int = 4
    replication: int = 1
    rate: float = 300.0
    """Records per second of each producer."""
    record_bytes: int = 200
    topic_settings: tuple[str, ...] = ()
    expires: bool = False
    plain: bool = False
    """Without idempotence."""
    acks: str = "all"
    keys: int = 0
    """Per partition of a compacted topic; without any, records have none."""
    transactors: int = 0
    """Producers of transactions, in place of the others."""


class Record:
    """The histories in one folder, and the result so far."""

    def __init__(
        self, home: Path, *, quick: bool = False, load: Load | None = None, seed: int = 1
    ) -> None:
        self.home = home
        self.quick = quick
        self.seed = seed
        self.load = load or Load()
        self.result = Result()
        self._histories: list[Path] = []
        self._own: Path = home / "faults.jsonl"
        self._counted: dict[Path, int] = {}
        """Bytes looked at."""
        self._acks: Counter[int] = Counter()
        self._expected: set[Anomaly] = set()

    def begin(self) -> None:
        self.home.mkdir(parents=True)
        self._own.touch()
        self._histories.append(self._own)

    def fault(self, name: str, partitions: Iterable[int] | None = None) -> int:
        """Put on record that a fault of some or all partitions starts now; returns the time."""
        self.result.faults += 1
        fields: dict[str, Any] = {"name": name}
        if partitions is not None:
            fields["tps"] = [f"{TOPIC}/{partition}" for partition in partitions]
        return self._note_event("x-fault", fields)

    def healed(self) -> int:
        """Put on record that what follows is not part of the last fault any more."""
        return self._note_event("x-healed", {})

    def _note_event(self, operation: str, fields: dict[str, Any]) -> int:
        now = time.monotonic_ns()
        with self._own.open("a") as file:
            file.write(json.dumps({"op": operation, "at": now, **fields}) + "\n")
        return now

    def proof(self, text: str) -> None:
        self.result.proofs.append(text)

    def note(self, text: str) -> None:
        self.result.notes.append(text)

    def problem(self, text: str) -> None:
        self.result.problems.append(text)

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problem(otherwise)

    def allow(self, *anomalies: Anomaly) -> None:
        """This scenario means to see these."""
        self._expected.update(anomalies)

    def acks_between(self, first: int, last: int, producer: str = "") -> int:
        """Acks in that time, of all producers or of one."""
        return sum(
            event["op"] == "ack" and first <= event["at"] <= last and producer in ("", event["p"])
            for event in self.events()
        )

    def events(self) -> Iterator[dict[str, Any]]:
        return read_history(self._histories)

    def acks_by_partition(self) -> Counter[int]:
        """Acks on record so far."""
        for path in self.home.glob("p*.jsonl"):
            done = self._counted.get(path, 0)
            with path.open("rb") as file:
                file.seek(done)
                data = file.read()
            # The last line may be half written.
            whole = data.rfind(b"\n") + 1
            for line in data[:whole].splitlines():
                if line.startswith(b'{"op":"ack"'):
                    self._acks[int(json.loads(line)["tp"].rpartition("/")[2])] += 1
            self._counted[path] = done + whole
        return Counter(self._acks)

    def acks(self) -> int:
        return self.acks_by_partition().total()
