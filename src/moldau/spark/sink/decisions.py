"""The commit decisions of a query: a log of entries, replayed to a `Ledger` by every process.

Entries are in one partition of a compacted topic. Their order alone decides which of them are
valid, so no locks are needed, and a driver that was presumed dead cannot disturb its successor:

- a **claim** makes a run the owner of its query, if its number is higher than all before it;
- a **decision** lists the transactions that make up a batch. It is valid if its claim is the
  highest so far and the batch was not decided yet;
- a **finish** says that all transactions of a decision have ended.

Different entries have different keys, so compaction never replaces a valid entry by an invalid one.
Obsolete entries are deleted by later decisions, one decision late: if the deleting decision turns
out to be invalid, the valid one is still there. All entries of a batch write are deleted once it is
done, along with the key `over`, which never had a value: while brokers keep that tombstone, a late
attempt learns from it that the write is over.
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
    """A run asks to become the only writer of its query."""

    number: int
    run: str
    nonce: str
    """Identifies the writer: several tasks of a run may claim at once."""

    def key(self, query: str) -> str:
        return f"{query}/claim/{self.number}/{self.run}/{self.nonce}"


class Decision(_Entry, frozen=True, kw_only=True):
    """The batch consists of what these transactions wrote."""

    claim: int
    batch: int
    parts: tuple[Part, ...]
    spare: tuple[Part, ...] = ()
    """The last transactions of tasks that had nothing to write in this batch."""

    def key(self, query: str) -> str:
        return f"{query}/decision/{self.claim}/{self.batch}"


class Finish(_Entry, frozen=True, kw_only=True):
    """All transactions of a decision have ended."""

    claim: int
    batch: int

    def key(self, query: str) -> str:
        return f"{query}/finish/{self.claim}/{self.batch}"


LedgerEntry = Claim | Decision | Finish


def parts_of(transactions: Mapping[int, Transaction]) -> tuple[Part, ...]:
    return tuple((number, *each) for number, each in sorted(transactions.items()))


def transactions_of(parts: Iterable[Part]) -> dict[int, Transaction]:
    """By task number."""
    return {number: Transaction(name, id_, epoch) for number, name, id_, epoch in parts}


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The state of one query: all its entries, replayed in order."""

    query: str
    partition: int = 0
    """Of the decisions topic, with the entries of this query."""
    position: int = 0
    """The offset to continue from."""
    claim_floor: int = 0
    """Claims must have higher numbers: older entries may be in another partition."""
    is_over: bool = False
    """A batch write was completed or aborted, and must not start again."""
    owner: Claim | None = None
    decision: Decision | None = None
    """The last valid one."""
    is_finished: bool = False
    """Of `decision`."""
    runs: set[str] = field(default_factory=set)
    """All known runs that ever were the owner."""
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Keys of live entries: their claim and batch."""

    def apply(self, key: str, value: bytes | None) -> None:
        """Applies the next entry. Raises ClientError for an unknown one."""
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
        elif self._is_valid(entry):
            self.decision = entry
            self.is_finished = not entry.parts

    def _is_valid(self, entry: Decision) -> bool:
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
        """The last decided batch; -1 if there is none."""
        return -1 if self.decision is None else self.decision.batch

    def is_decided(self, batch: int) -> bool:
        return self.last_batch >= batch

    def deletable(self) -> list[str]:
        """Keys of entries that are obsolete even if the next decision is invalid."""
        owner, decided = self.owner, self.decision
        if owner is None or decided is None or decided.claim != owner.number:
            # The last decision is of a previous owner: both are still needed.
            return []
        return [
            key
            for key, (claim, batch) in self.keys.items()
            if claim < owner.number or 0 <= batch < decided.batch
        ]


encode_entry: Final = msgspec.json.encode


def decode_entry(value: bytes) -> LedgerEntry:
    try:
        found = msgspec.json.decode(value, type=_Format).format
        if found != _FORMAT:
            raise ClientError(
                f"a decision of this query has format {found}, which needs a newer version of "
                "Moldau"
            )
        entry: LedgerEntry = msgspec.json.decode(value, type=LedgerEntry)
        return entry
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ClientError(
            f"a decision of this query is corrupt: {error}",
            hint="only Spark queries may write to the decisions topic",
        ) from error


class _Format(msgspec.Struct):
    """The field that entries of all versions have."""

    format: int
