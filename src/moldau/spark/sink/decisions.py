"""Responsible for what is decided about the batches of a query: a log of entries, read by all.

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from moldau.client.errors import ClientError
from moldau.client.wire.transactions import TransactionalProducer as Transaction

_FORMAT: Final = 1
Part = tuple[int, str, int, int]
"""The number of a task, and its transaction's name, producer id and epoch."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    format: int = _FORMAT


class Claim(_Entry, frozen=True, kw_only=True):
    """A run wants to be the one that writes for its query."""

    number: int
    run: str
    nonce: str
    """Of whoever wrote it: several tasks of a run may claim at once."""

    def key(self, query: str) -> str:
        return f"{query}/claim/{self.number}/{self.run}/{self.nonce}"


class Decision(_Entry, frozen=True, kw_only=True):
    """A batch of a query is what these transactions wrote."""

    claim: int
    batch: int
    parts: tuple[Part, ...]
    spare: tuple[Part, ...] = ()
    """The last ones of tasks that had nothing to write this time."""

    def key(self, query: str) -> str:
        return f"{query}/decision/{self.claim}/{self.batch}"


class Finish(_Entry, frozen=True, kw_only=True):
    """All transactions of a decision have ended."""

    claim: int
    batch: int

    def key(self, query: str) -> str:
        return f"{query}/finish/{self.claim}/{self.batch}"


Entry = Claim | Decision | Finish


def parts_of(transactions: Mapping[int, Transaction]) -> tuple[Part, ...]:
    return tuple((number, *each) for number, each in sorted(transactions.items()))


def transactions_of(parts: Iterable[Part]) -> dict[int, Transaction]:
    """By the number of their task."""
    return {number: Transaction(name, id_, epoch) for number, name, id_, epoch in parts}


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
        if isinstance(entry, Claim):
            self.keys[key] = (entry.number, -1)
            if self.owner is None or entry.number > self.owner.number:
                self.owner = entry
                self.runs.add(entry.run)
            return
        self.keys[key] = (entry.claim, entry.batch)
        decided = self.decision
        if isinstance(entry, Finish):
            if decided and (entry.claim, entry.batch) == (decided.claim, decided.batch):
                self.is_finished = True
        elif self._counts(entry):
            self.decision = entry
            self.is_finished = not entry.parts

    def _counts(self, entry: Decision) -> bool:
        is_owner = self.owner is not None and entry.claim == self.owner.number
        return is_owner and entry.batch > self.last_batch

    def copy(self) -> "Ledger":
        return replace(self, runs=set(self.runs), keys=dict(self.keys))

    @property
    def next_number(self) -> int:
        return max(self.claim_floor, 0 if self.owner is None else self.owner.number) + 1

    @property
    def over_key(self) -> str:
        return f"{self.query}/over"

    @property
    def decided_names(self) -> set[str]:
        """The transactions of the last decision."""
        return set() if self.decision is None else {name for _, name, _, _ in self.decision.parts}

    @property
    def last_batch(self) -> int:
        """That was decided; -1 if none was."""
        return -1 if self.decision is None else self.decision.batch

    def is_decided(self, batch: int) -> bool:
        return self.last_batch >= batch

    def deletable(self) -> list[str]:
        """Keys of entries that nobody needs, not even if the next decision does not count."""
        owner, decided = self.owner, self.decision
        if owner is None or decided is None or decided.claim != owner.number:
            # The last decision is of an owner before: both are still needed.
            return []
        return [
            key
            for key, (claim, batch) in self.keys.items()
            if claim < owner.number or 0 <= batch < decided.batch
        ]


encode_entry: Final = msgspec.json.encode


def decode_entry(value: bytes) -> Entry:
    try:
        found = msgspec.json.decode(value, type=_Format).format
        if found != _FORMAT:
            raise ClientError(
                f"a decision of this query has format {found}, which only a newer version of "
                "Moldau knows"
            )
        entry: Entry = msgspec.json.decode(value, type=Entry)
        return entry
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ClientError(
            f"a decision of this query cannot be read: {error}",
            hint="does anyone else write to the topic of decisions?",
        ) from error


class _Format(msgspec.Struct):
    """What an entry of any version has."""

    format: int
