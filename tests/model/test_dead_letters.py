"""What headers of dead letters say, also those that somebody made up."""

import pytest

from moldau.model.dead_letters import (
    EARLIER_DEATHS_MAX,
    DeadOrigin,
    EarlierDeath,
    Headers,
    digest_of,
    note_of,
    number_of,
    restored_headers,
    without_earlier_deaths,
)
from moldau.model.queue_headers import ONLY_GROUP_HEADER

HEADERS = [
    ("color", b"red"),
    ("moldau-dead-reason", b"bad"),
    ("moldau-dead-attempts", b"3"),
    ("moldau-dead-group", b"g"),
    ("moldau-dead-topic", b"t"),
    ("moldau-dead-partition", b"1"),
    ("moldau-dead-offset", b"7"),
    ("moldau-dead-at", b"1763503200000"),
]

DIED = ("moldau-earlier-death", b"at=1763503200000 attempts=3 topic=t reason=bad")


def test_a_note_has_what_the_headers_say() -> None:
    note = note_of(HEADERS)
    assert note is not None
    assert note.origin == DeadOrigin("g", "t", "1", "7")
    assert (note.reason, note.attempts, note.died_at_ms) == ("bad", 3, 1_763_503_200_000)
    assert (note.missing, note.is_keyless) == ("", False)
    cut = note_of([*HEADERS, ("moldau-dead-truncated", b"value"), ("moldau-dead-keyless", None)])
    assert cut is not None
    assert (cut.missing, cut.is_keyless) == ("value", True)


def test_headers_without_a_topic_are_of_no_dead_letter() -> None:
    assert note_of([]) is None
    assert note_of([("moldau-dead-group", b"g"), ("moldau-dead-topic", None)]) is None


def test_what_is_no_text_or_number_is_not_trusted() -> None:
    made_up = [("moldau-dead-topic", b"\xff"), ("moldau-dead-attempts", b"-3"), ("x", None)]
    note = note_of([*made_up, ("moldau-dead-truncated", b"")])
    assert note is not None
    assert note.origin.topic == "\ufffd"
    assert (note.attempts, note.died_at_ms, note.missing) == (None, None, "a part")


def test_only_what_is_of_the_same_message_and_equal_has_the_same_digest() -> None:
    note = note_of(HEADERS)
    assert note is not None
    digest = digest_of(note, b"k", b"v", HEADERS)
    later = [
        ("moldau-dead-at", b"1") if name == "moldau-dead-at" else (name, value)
        for name, value in HEADERS
    ]
    assert digest_of(note, b"k", b"v", later) == digest
    moved = note._replace(origin=note.origin._replace(offset="8"))
    keyless = note._replace(is_keyless=True)
    others = [
        digest_of(moved, b"k", b"v", HEADERS),
        digest_of(note, b"kv", b"", HEADERS),
        digest_of(note, None, b"v", HEADERS),
        digest_of(note, b"", b"v", HEADERS),
        digest_of(note, b"k", None, HEADERS),
        digest_of(note, b"k", b"v", HEADERS[1:]),
        digest_of(note, b"k", b"v", [*HEADERS, ("\udcff", None)]),
    ]
    assert len({digest, *others}) == len(others) + 1
    made_up = {digest_of(keyless, key, b"v", HEADERS) for key in (b"1", b"2")}
    assert made_up == {digest_of(note, None, b"v", HEADERS)}


@pytest.mark.parametrize("text", ["", "x", "1.5", "-1", "²", "9" * 19])
def test_only_plain_numbers_count(text: str) -> None:
    assert number_of(text) is None


def test_the_message_comes_back_without_what_made_it_a_dead_letter() -> None:
    old = [*HEADERS, ("moldau-deliver-at", b"1"), (ONLY_GROUP_HEADER, b"old")]
    assert restored_headers(old, None) == [("color", b"red"), DIED]
    assert restored_headers(old, b"g") == [("color", b"red"), DIED, (ONLY_GROUP_HEADER, b"g")]
    assert restored_headers([("color", b"red")], None) == [("color", b"red")]


def test_a_message_remembers_its_last_deaths_whatever_they_say() -> None:
    headers: Headers = [("color", b"red")]
    for number in range(EARLIER_DEATHS_MAX + 2):
        reason = "no = good\n" * number * 10
        letter = [
            *headers,
            ("moldau-dead-topic", b"t"),
            ("moldau-dead-attempts", str(number).encode()),
            ("moldau-dead-reason", reason.encode()),
        ]
        headers = restored_headers(letter, None)
        assert size(headers) <= size(letter)
        note = note_of([*headers, ("moldau-dead-topic", b"u")])
        assert note is not None
        earlier = note.earlier
        assert earlier[-1] == EarlierDeath(None, number, "t", reason[:200])
    assert [death.attempts for death in earlier] == list(range(2, EARLIER_DEATHS_MAX + 2))
    assert without_earlier_deaths(headers) == [("color", b"red")]
    long: Headers = [("moldau-earlier-death", b"at=1 attempts=1 topic=t reason=" + b"x" * 9999)]
    note = note_of([*HEADERS, *long])
    assert note is not None
    assert note.earlier == (EarlierDeath(1, 1, "t", "x" * 200),)
    made_up: Headers = [("moldau-earlier-death", value) for value in (b"x", None, b"\xff")]
    note = note_of([*HEADERS, *made_up])
    assert note is not None
    assert note.earlier == ()


def size(headers: Headers) -> int:
    return sum(len(name) + len(value or b"") for name, value in headers)
