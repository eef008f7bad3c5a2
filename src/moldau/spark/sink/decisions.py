"""Owns what is decided about the batches of a query, as a log of entries that all read alike.

Entries stand in one partition of a compacted topic. Which of them count is said by their order and
by nothing else, so that nobody needs a lock, and a driver that was taken for dead cannot spoil what
its successor does:

- a **claim** makes a run of a query its owner, if its number is higher than all before it;
- a **decision** says that a batch is these transactions and no others. It counts if its claim is
  the highest so far and the batch was not decided yet;
- a **finish** says that all transactions of a decision have ended.

No two entries that differ have the same key: one that does not count can never, by compaction, take
the place of one that does. What is no longer needed is deleted by the decisions that follow, always
one decision late: should the one that deletes not count, the one that counts is still there. All
entries about a table are deleted once it is written, together with the key `over`, which never had
a value: as long as brokers keep such deletions, an attempt that comes late is told by it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from moldau.client.errors import ClientError

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transaction as its coordinator knows it: no other one has the same three."""

    id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run wants to be the one that writes for its query."""

    number: int
    run: str
    nonce: str
    """Of whoever wrote it: several tasks of a run may claim at once."""

    def key(self, query: str) -> str:
        return f"{query}/claim/{self.number}/{self.run}/{self.nonce}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A batch of a query is what these transactions wrote, by the number of their task."""

    claim: int
    batch: int
    parts: Mapping[int, Transaction]
    spare: Mapping[int, Transaction] = field(default_factory=dict)
    """The last ones of tasks that had nothing to write this time."""

    def key(self, query: str) -> str:
        return f"{query}/decision/{self.claim}/{self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """All transactions of a decision have ended."""

    claim: int
    batch: int

    def key(self, query: str) -> str:
        return f"{query}/finish/{self.claim}/{self.batch}"


Entry = Claim | Decision | Finish


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What the entries of one query come to, read in their order from the first on."""

    query: str
    partition: int = 0
    """Where the entries stand."""
    position: int = 0
    """Where to read on."""
    claim_floor: int = 0
    """No claim may have a lower number: entries of before stand in another partition."""
    is_over: bool = False
    """All was written, or given up, and nobody may begin anew."""
    owner: Claim | None = None
    decision: Decision | None = None
    """The last that counts."""
    is_finished: bool = False
    """Of `decision`."""
    runs: set[str] = field(default_factory=set)
    """All that ever were owner, as far as is still known."""
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Entries that are still there: the claim and the batch that they are of."""

    def apply(self, key: str, value: bytes | None) -> None:
        """Take over the next entry. Raises ClientError if it is none that we know."""
        if not key.startswith(f"{self.query}/"):
            return
        if value is None:
            self.keys.pop(key, None)
            self.is_over |= key == self.over_key
            return
        entry = decode_entry(value)
        match entry:
            case Claim():
                self.keys[key] = (entry.number, -1)
                if self.owner is None or entry.number > self.owner.number:
                    self.owner = entry
                    self.runs.add(entry.run)
            case Decision():
                self.keys[key] = (entry.claim, entry.batch)
                if self._counts(entry):
                    self.decision = entry
                    self.is_finished = not entry.parts
            case Finish():
                self.keys[key] = (entry.claim, entry.batch)
                decided = self.decision
                if decided and (entry.claim, entry.batch) == (decided.claim, decided.batch):
                    self.is_finished = True

    def _counts(self, entry: Decision) -> bool:
        if self.owner is None or entry.claim != self.owner.number:
            return False
        return self.decision is None or entry.batch > self.decision.batch

    def copy(self) -> "Ledger":
        return replace(self, runs=set(self.runs), keys=dict(self.keys))

    def is_superseded(self, run: str) -> bool:
        """Whether the run was the owner once and is not any more."""
        return run in self.runs and (self.owner is None or self.owner.run != run)

    @property
    def next_number(self) -> int:
        return max(self.claim_floor, 0 if self.owner is None else self.owner.number) + 1

    @property
    def over_key(self) -> str:
        return f"{self.query}/over"

    def is_decided(self, batch: int) -> bool:
        return self.decision is not None and self.decision.batch >= batch

    def deletable(self) -> list[str]:
        """Keys of entries that nobody needs, not even if the next decision does not count."""
        owner, decided = self.owner, self.decision
        if owner is None or decided is None or decided.claim != owner.number:
            # The last decision is of an owner before: both are still needed.
            return []
        needed = (decided.claim, decided.batch)
        return [
            key
            for key, (claim, batch) in self.keys.items()
            if (claim < owner.number) or (0 <= batch < decided.batch and (claim, batch) != needed)
        ]


def encode_entry(entry: Entry) -> bytes:
    fields: dict[str, Any]
    match entry:
        case Claim():
            fields = {
                "kind": "claim",
                "number": entry.number,
                "run": entry.run,
                "nonce": entry.nonce,
            }
        case Decision():
            fields = {
                "kind": "decision",
                "claim": entry.claim,
                "batch": entry.batch,
                "parts": _encode_parts(entry.parts),
                "spare": _encode_parts(entry.spare),
            }
        case Finish():
            fields = {"kind": "finish", "claim": entry.claim, "batch": entry.batch}
    return json.dumps({"format": _FORMAT, **fields}, separators=(",", ":")).encode()


def decode_entry(value: bytes) -> Entry:
    try:
        fields = json.loads(value)
        if fields["format"] != _FORMAT:
            raise ClientError(
                f"a decision of this query has format {fields['format']}, which only a newer "
                "version of Moldau knows"
            )
        match fields["kind"]:
            case "claim":
                return Claim(
                    number=int(fields["number"]),
                    run=str(fields["run"]),
                    nonce=str(fields["nonce"]),
                )
            case "decision":
                return Decision(
                    claim=int(fields["claim"]),
                    batch=int(fields["batch"]),
                    parts=_decode_parts(fields["parts"]),
                    spare=_decode_parts(fields["spare"]),
                )
            case "finish":
                return Finish(claim=int(fields["claim"]), batch=int(fields["batch"]))
            case kind:
                raise ClientError(f"a decision of this query is a {kind!r}, which nobody knows")
    except (ValueError, KeyError, TypeError) as error:
        raise ClientError(
            f"a decision of this query cannot be read: {error}",
            hint="does anyone else write to the topic of decisions?",
        ) from error


def _encode_parts(parts: Mapping[int, Transaction]) -> list[list[Any]]:
    return [
        [number, part.id, part.producer_id, part.epoch] for number, part in sorted(parts.items())
    ]


def _decode_parts(parts: Sequence[Sequence[Any]]) -> dict[int, Transaction]:
    return {
        int(number): Transaction(id=str(name), producer_id=int(producer_id), epoch=int(epoch))
        for number, name, producer_id, epoch in parts
    }
