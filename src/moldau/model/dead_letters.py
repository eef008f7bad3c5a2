"""What the headers of a dead letter say, and the headers of the message that it was.

The client and the brokers redrive by these rules.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from moldau.model.queue_headers import (
    DEAD_AT_HEADER,
    DEAD_ATTEMPTS_HEADER,
    DEAD_GROUP_HEADER,
    DEAD_KEYLESS_HEADER,
    DEAD_OFFSET_HEADER,
    DEAD_PARTITION_HEADER,
    DEAD_PREFIX,
    DEAD_REASON_HEADER,
    DEAD_TOPIC_HEADER,
    DEAD_TRUNCATED_HEADER,
    DELIVER_AT_HEADER,
    EARLIER_DEATH_HEADER,
    ONLY_GROUP_HEADER,
)

REDRIVE_SUFFIX: Final = ".redrive"
"""The queue group that reads the dead letters of group G is G.redrive: its state says which of them
were redriven."""

_OLD_HEADERS: Final = frozenset({DELIVER_AT_HEADER, ONLY_GROUP_HEADER})
_DIGITS_MAX: Final = 18
_DIGEST_BYTES: Final = 16
EARLIER_DEATHS_MAX: Final = 10
"""That a message remembers; then it forgets the oldest."""
_REASON_CHARACTERS_MAX: Final = 200
"""Of an earlier death."""
_TOPIC_CHARACTERS_MAX: Final = 249
_DEATH: Final = re.compile(r"at=(\d*) attempts=(\d*) topic=(\S*) reason=(.*)", re.DOTALL)

Headers = Sequence[tuple[str, bytes | None]]


class DeadOrigin(NamedTuple):
    """The message that became a dead letter; after a failover, there may be two of one origin.

    Text: all who may write to the dead-letter topic can make it up. And after a topic was deleted
    and created again, another message has the same.
    """

    group: str
    topic: str
    partition: str
    offset: str


class EarlierDeath(NamedTuple):
    """A dead letter that was redriven, and failed again. Who wrote the message can make it up."""

    died_at_ms: int | None
    attempts: int | None
    topic: str
    reason: str


class DeadLetterNote(NamedTuple):
    """What is known of a dead letter; None where its headers do not say."""

    origin: DeadOrigin
    reason: str
    attempts: int | None
    died_at_ms: int | None
    missing: str
    """Of the message, because it was too large or unreadable; empty if it is whole."""
    is_keyless: bool
    """Its key was made up for the dead-letter topic."""
    earlier: tuple[EarlierDeath, ...] = ()
    """The oldest first."""


def note_of(headers: Headers) -> DeadLetterNote | None:
    """None: it is not a dead letter."""
    texts = {name: (value or b"").decode("utf-8", "replace") for name, value in headers}
    topic = texts.get(DEAD_TOPIC_HEADER)
    if not topic:
        return None
    origin = DeadOrigin(
        texts.get(DEAD_GROUP_HEADER, ""),
        topic,
        texts.get(DEAD_PARTITION_HEADER, ""),
        texts.get(DEAD_OFFSET_HEADER, ""),
    )
    missing = texts.get(DEAD_TRUNCATED_HEADER)
    return DeadLetterNote(
        origin,
        texts.get(DEAD_REASON_HEADER, ""),
        number_of(texts.get(DEAD_ATTEMPTS_HEADER, "")),
        number_of(texts.get(DEAD_AT_HEADER, "")),
        "" if missing is None else missing or "a part",
        DEAD_KEYLESS_HEADER in texts,
        tuple(_earlier_deaths(headers)),
    )


def _earlier_deaths(headers: Headers) -> Iterator[EarlierDeath]:
    found = [value or b"" for name, value in headers if name == EARLIER_DEATH_HEADER]
    for value in found[-EARLIER_DEATHS_MAX:]:
        if match := _DEATH.fullmatch(value.decode("utf-8", "replace")):
            died_at, attempts, topic, reason = match.groups()
            yield EarlierDeath(
                number_of(died_at),
                number_of(attempts),
                topic[:_TOPIC_CHARACTERS_MAX],
                reason[:_REASON_CHARACTERS_MAX],
            )


def digest_of(
    note: DeadLetterNote, key: bytes | None, value: bytes | None, headers: Headers
) -> bytes:
    """Two dead letters with the same one are of the same message: its origin, key, value and
    headers are equal."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    parts: list[str | bytes | None] = [*note.origin, None if note.is_keyless else key, value]
    for name, content in _own_headers(headers):
        parts += (name, content)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(b"-" if data is None else b"%d:" % len(data))
        digest.update(data or b"")
    return digest.digest()


def number_of(text: str) -> int | None:
    """A number in a header; None if it is none."""
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
        return None
    return int(text)


def restored_headers(headers: Headers, only_group: bytes | None) -> list[tuple[str, bytes | None]]:
    """Those of the message that it was, and what became of it. `only_group`: other queue groups
    skip it."""
    kept = _own_headers(headers)
    if (note := note_of(headers)) is not None:
        deaths = [item for item in kept if item[0] == EARLIER_DEATH_HEADER]
        deaths.append((EARLIER_DEATH_HEADER, _death(note)))
        kept = without_earlier_deaths(kept) + deaths[-EARLIER_DEATHS_MAX:]
    if only_group is not None:
        kept.append((ONLY_GROUP_HEADER, only_group))
    return kept


def without_earlier_deaths(headers: Headers) -> list[tuple[str, bytes | None]]:
    return [item for item in headers if item[0] != EARLIER_DEATH_HEADER]


def _own_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    return [
        (name, value)
        for name, value in headers
        if not name.startswith(DEAD_PREFIX) and name not in _OLD_HEADERS
    ]


def _death(note: DeadLetterNote) -> bytes:
    at, attempts = ("" if number is None else number for number in (note.died_at_ms, note.attempts))
    reason = note.reason[:_REASON_CHARACTERS_MAX]
    return f"at={at} attempts={attempts} topic={note.origin.topic} reason={reason}".encode()
