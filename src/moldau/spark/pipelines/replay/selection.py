"""Owns which records are meant: what times, offsets and keys say, as text and as values. Pure."""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.replay.settings import ReplaySettings

_AGO_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_OFFSETS: Final = re.compile(r"(?:([\w.-]+)/)?(\d{1,9}):(\d{0,18})-(\d{0,18})")
_OFFSETS_EXAMPLE: Final = "PARTITION:FIRST-LAST as in 0:100-199, 0:100-, or orders/0:-199"
ENCODINGS: Final = ("text", "hex", "base64")


class Span(NamedTuple):
    """Offsets of a partition, `end` not included; None is as far as it goes."""

    first: int | None
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """All of it holds together; what is None selects everything."""

    from_ms: int | None = None
    to_ms: int | None = None
    spans: Mapping[tuple[str | None, int], Span] = field(default_factory=dict)
    """By topic (None: whichever) and partition. If there is any, only those are meant."""
    keys: frozenset[bytes] | None = None

    def span(self, topic: str, partition: int) -> Span | None:
        """What is meant of a partition by its offsets; None is nothing."""
        if not self.spans:
            return Span(None, None)
        return self.spans.get((topic, partition)) or self.spans.get((None, partition))

    def keys_digest(self) -> str | None:
        """Tells whether they are the same keys as before."""
        if self.keys is None:
            return None
        digest = hashlib.sha256()
        for key in sorted(self.keys):
            digest.update(len(key).to_bytes(8, "big") + key)
        return digest.hexdigest()


def selection_of(settings: ReplaySettings, *, now_ms: int) -> Selection:
    """Raises InvalidArgumentError, which names the option to change. Reads the file of keys."""
    from_ms = _moment(settings.from_time, "--from-time", now_ms)
    to_ms = _moment(settings.to_time, "--to-time", now_ms)
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise InvalidArgumentError(
            f"nothing lies between --from-time {settings.from_time} and --to-time "
            f"{settings.to_time}",
            hint="--to-time is the first moment that is not sent, and has to be the later one",
        )
    return Selection(
        from_ms=from_ms,
        to_ms=to_ms,
        spans=_spans(settings.offsets, settings.topics),
        keys=_keys(settings),
    )


def _moment(text: str | None, option: str, now_ms: int) -> int | None:
    if text is None:
        return None
    said = text.strip()
    if ago := re.fullmatch(r"-(\d{1,9})(ms|s|m|h|d)", said):
        return now_ms - int(ago[1]) * _AGO_MS[ago[2]]
    if re.fullmatch(r"\d{10,15}", said):
        return int(said)
    try:
        return int(datetime.fromisoformat(said).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidArgumentError(
            f"{option} {text!r} is no time",
            hint="write 2026-11-15T14:00:00Z, milliseconds since 1970, or how long ago: -2h",
        ) from None


def _spans(texts: Iterable[str], topics: tuple[str, ...]) -> dict[tuple[str | None, int], Span]:
    found: dict[tuple[str | None, int], Span] = {}
    for text in texts:
        match = _OFFSETS.fullmatch(text.strip())
        if match is None:
            raise InvalidArgumentError(f"--offsets {text!r} is not {_OFFSETS_EXAMPLE}")
        topic, partition, first, last = match.groups()
        if topic is not None and topics and topic not in topics:
            raise InvalidArgumentError(
                f"--offsets {text} names {topic}, which is not among what is read",
                hint=f"read are {', '.join(topics)}",
            )
        place = (topic, int(partition))
        if place in found:
            raise InvalidArgumentError(
                f"--offsets names partition {partition} twice",
                hint="one range per partition; run two replays for two ranges",
            )
        span = Span(int(first) if first else None, int(last) + 1 if last else None)
        if span.first is not None and span.end is not None and span.first >= span.end:
            raise InvalidArgumentError(f"--offsets {text} is empty: it ends before it begins")
        found[place] = span
    return found


def _keys(settings: ReplaySettings) -> frozenset[bytes] | None:
    if settings.key_encoding not in ENCODINGS:
        raise InvalidArgumentError(
            f"--key-encoding is {', '.join(ENCODINGS)}, not {settings.key_encoding!r}"
        )
    if not settings.keys and settings.key_file is None:
        return None
    found = {_key(text, settings.key_encoding, "--key") for text in settings.keys}
    if settings.key_file is not None:
        found |= _keys_in_file(settings.key_file, settings.key_encoding)
    return frozenset(found)


def _keys_in_file(path: str, encoding: str) -> set[bytes]:
    option = f"--key-file {path}"
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise InvalidArgumentError(f"{option} cannot be read: {error.strerror or error}") from None
    if encoding == "text":
        # As bytes, so that keys that are no UTF-8 can be named, too.
        found = {line for line in lines if line}
    else:
        found = {
            _key(line.decode("ascii", "replace").strip(), encoding, option)
            for line in lines
            if line.strip()
        }
    if not found:
        raise InvalidArgumentError(f"{option} holds no key", hint="one key per line")
    return found


def _key(text: str, encoding: str, option: str) -> bytes:
    try:
        match encoding:
            case "hex":
                return bytes.fromhex(text)
            case "base64":
                return base64.b64decode(text, validate=True)
            case _:
                return text.encode()
    except (ValueError, binascii.Error):
        raise InvalidArgumentError(
            f"{option}: {text!r} is no {encoding}", hint="see --key-encoding"
        ) from None
