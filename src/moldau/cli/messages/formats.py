"""Formats messages as text, JSON lines, or with a template like kcat's -f."""

import base64
import json
import re
import struct
from collections.abc import Callable
from typing import Any

import click

from moldau.cli.errors import CommandError, ExitCode

Formatter = Callable[[Any], bytes]
"""Turns a message of librdkafka into the bytes to print, newline included."""

PLACEHOLDERS = {
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp in ms",
    "k": "key",
    "s": "value",
    "h": "headers",
    "K": "length of the key, -1 for null",
    "S": "length of the value, -1 for null",
    "R": "the same as 4 bytes big-endian",
    "%": "a percent sign",
}

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


NULL = b"NULL"
"""What kcat prints for a null header, and with -Z for a null key or value."""


def text_formatter(
    *,
    key: bool,
    headers: bool,
    topic: bool = False,
    null: bytes = b"",
    color: bool = False,
    marked: bytes = b"",
) -> Formatter:
    """The value, after the chosen ones of topic, headers and key, separated by tabs.

    With `color`, the parts have different colours, and `marked` is highlighted in the value.
    """

    def styled(text: bytes, fg: str) -> bytes:
        before, after = click.style("\0", fg=fg).encode().split(b"\0")
        return before + text + after if color else text

    def format_text(message: Any) -> bytes:
        parts = []
        if topic:
            parts.append(styled(str(message.topic()).encode(), "magenta"))
        if headers:
            parts.append(styled(_headers_text(message), "bright_black"))
        if key:
            parts.append(styled(_bytes(message.key(), null or b"null"), "cyan"))
        value = _bytes(message.value(), null)
        if color and marked:
            value = value.replace(marked, styled(marked, "red"))
        return b"\t".join((*parts, value)) + b"\n"

    return format_text


def json_formatter(message: Any) -> bytes:
    """One JSON object per line; bytes that are not UTF-8 become {"base64": …}."""
    document = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key": json_value(message.key()),
        "value": json_value(message.value()),
        "headers": [[name, json_value(value)] for name, value in message.headers() or []],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def template_formatter(template: str, null: bytes = b"") -> Formatter:
    r"""Placeholders such as %o, escapes such as \n; no newline is added.

    `null` is printed for a missing key or value.
    """
    parts: list[bytes | str] = []
    for match in re.finditer(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|([^%\\]+)", template, re.DOTALL):
        placeholder, escape, literal = match.groups()
        if literal is not None:
            parts.append(literal.encode(errors="surrogateescape"))
        elif escape is not None and len(escape) == 3:
            parts.append(bytes.fromhex(escape[1:]))
        elif escape is not None:
            if escape not in _ESCAPES:
                raise _bad(f"\\{escape}", "escapes: \\n \\t \\r \\0 \\\\ \\xNN")
            parts.append(_ESCAPES[escape])
        elif placeholder == "%":
            parts.append(b"%")
        elif placeholder in PLACEHOLDERS:
            parts.append(placeholder)
        else:
            known = ", ".join(f"%{name} {doc}" for name, doc in PLACEHOLDERS.items())
            raise _bad(f"%{placeholder}", f"placeholders: {known}")

    def format_template(message: Any) -> bytes:
        return b"".join(
            part if isinstance(part, bytes) else _field(message, part, null) for part in parts
        )

    return format_template


def _bad(what: str, hint: str) -> CommandError:
    return CommandError(f"unknown {what} in the format", hint=hint, code=ExitCode.USAGE)


def _field(message: Any, name: str, null: bytes) -> bytes:
    match name:
        case "t":
            return str(message.topic()).encode()
        case "p":
            return str(message.partition()).encode()
        case "o":
            return str(message.offset()).encode()
        case "T":
            return str(message.timestamp()[1]).encode()
        case "k":
            return _bytes(message.key(), null)
        case "s":
            return _bytes(message.value(), null)
        case "h":
            return _headers_text(message)
        case "K":
            return str(_length(message.key())).encode()
        case "R":
            return struct.pack(">i", _length(message.value()))
        case _:
            return str(_length(message.value())).encode()


def _length(data: bytes | str | None) -> int:
    return -1 if data is None else len(_bytes(data, b""))


def _bytes(data: bytes | str | None, missing: bytes) -> bytes:
    if data is None:
        return missing
    return data.encode() if isinstance(data, str) else data


def _headers_text(message: Any) -> bytes:
    return b",".join(
        name.encode() + b"=" + _bytes(value, NULL) for name, value in message.headers() or []
    )


def json_value(data: bytes | str | None) -> object:
    """Text, or {"base64": …} for bytes that are not UTF-8."""
    if data is None or isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
