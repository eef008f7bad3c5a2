"""Entries about batches: what counts is said by their order, whoever reads them."""

import json

import pytest

from moldau.client.errors import ClientError
from moldau.spark.sink.decisions import (
    Claim,
    Decision,
    Finish,
    Ledger,
    LedgerEntry,
    decode_entry,
    encode_entry,
)

PART = (0, "moldau-spark-q-1-0-7", 5, 2)
ENTRIES: list[LedgerEntry] = [
    Claim(number=1, run="a", nonce="x"),
    Decision(claim=1, batch=0, parts=(PART,), spare=((1, *PART[1:]),)),
    Finish(claim=1, batch=0),
]


def ledger(*entries: LedgerEntry) -> Ledger:
    found = Ledger(query="q")
    for entry in entries:
        found.apply(entry.key("q"), encode_entry(entry))
    return found


STORED = [
    b'{"format":1,"kind":"claim","number":1,"run":"a","nonce":"x"}',
    b'{"format":1,"kind":"decision","claim":1,"batch":0,'
    b'"parts":[[0,"moldau-spark-q-1-0-7",5,2]],"spare":[[1,"moldau-spark-q-1-0-7",5,2]]}',
    b'{"format":1,"kind":"finish","claim":1,"batch":0}',
]
"""As all versions write them, whatever the order of the fields."""


@pytest.mark.parametrize(("entry", "stored"), list(zip(ENTRIES, STORED, strict=True)))
def test_entries_are_written_and_read_as_other_versions_do(
    entry: LedgerEntry, stored: bytes
) -> None:
    assert json.loads(encode_entry(entry)) == json.loads(stored)
    assert decode_entry(stored) == decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"no json", "is corrupt"),
        (b"[]", "is corrupt"),
        (b'{"format": 9}', "newer"),
        (b'{"format": 1, "kind": "rumour"}', "rumour"),
        (
            b'{"format": 1, "kind": "decision", "claim": 1, "batch": 0, "parts": [[1]]}',
            "is corrupt",
        ),
    ],
)
def test_what_is_no_entry_is_refused(value: bytes, message: str) -> None:
    with pytest.raises(ClientError, match=message):
        decode_entry(value)


def test_entries_of_other_queries_are_passed_over() -> None:
    found = Ledger(query="q")
    found.apply("q2/claim/1/a/x", encode_entry(ENTRIES[0]))
    assert found.owner is None


def test_the_highest_claim_owns_and_of_two_with_one_number_the_first() -> None:
    found = ledger(
        Claim(number=1, run="a", nonce="x"),
        Claim(number=2, run="b", nonce="x"),
        Claim(number=2, run="c", nonce="x"),
        Claim(number=1, run="d", nonce="x"),
    )
    assert found.owner is not None
    assert found.owner.run == "b"
    assert found.runs == {"a", "b"}
    assert found.next_number == 3


def test_a_decision_of_a_former_owner_does_not_count() -> None:
    found = ledger(
        *ENTRIES,
        Claim(number=2, run="b", nonce="x"),
        Decision(claim=1, batch=1, parts=()),
    )
    assert found.decision == ENTRIES[1]
    assert found.is_finished
    assert not found.is_decided(1)


def test_a_batch_is_decided_once() -> None:
    found = ledger(*ENTRIES, Decision(claim=1, batch=0, parts=()))
    assert found.decision == ENTRIES[1]


def test_what_the_last_two_decisions_need_is_never_deleted() -> None:
    second: list[LedgerEntry] = [
        Decision(claim=1, batch=1, parts=(PART,)),
        Finish(claim=1, batch=1),
    ]
    assert ledger(*ENTRIES).deletable() == []
    gone = ledger(*ENTRIES, *second).deletable()
    assert gone == [entry.key("q") for entry in ENTRIES[1:]]
    # The new owner has decided nothing yet: all it stands on is of the one before.
    owner = Claim(number=2, run="b", nonce="y")
    assert ledger(*ENTRIES, *second, owner).deletable() == []
    third = Decision(claim=2, batch=2, parts=(PART,))
    gone = ledger(*ENTRIES, *second, owner, third).deletable()
    assert set(gone) == {entry.key("q") for entry in (*ENTRIES, *second)}
