"""Owns how a message looks when it is printed: text, JSON lines, or by a template."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from moldau.cli.errors import CommandError, ExitCode

Formatter = Callable[[Any], bytes]
"""From a message of librdkafka to the bytes of its line, line end included."""

PLACEHOLDERS = {
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp in ms",
    "k": "key",
    "s": "value",
    "h": "headers",
    "K": "bytes of the key, -1 for none",
    "S": "bytes of the value, -1 for none",
    "%": "a percent sign",
}

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def text_formatter(*, key: bool, headers: bool, separator: str = "\t") -> Formatter:
    """The value, after the headers and the key if asked for."""
    between = separator.encode()

    def format_text(message: Any) -> bytes:
        parts = []
        if headers:
            parts.append(_headers_text(message))
        if key:
            parts.append(_bytes(message.key(), b"null"))
        parts.append(_bytes(message.value(), b""))
        return between.join(parts) + b"\n"

    return format_text


def json_formatter(message: Any) -> bytes:
    """One JSON object per line; bytes that are no UTF-8 become {"base64": …}."""
    document = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key": _json_value(message.key()),
        "value": _json_value(message.value()),
        "headers": [[name, _json_value(value)] for name, value in message.headers() or []],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def template_formatter(template: str) -> Formatter:
    r"""Placeholders as %o, escapes as \n; nothing is added, not even a line end."""
    parts: list[bytes | str] = []
    for match in re.finditer(r"%(.?)|\\(.?)|([^%\\]+)", template, re.DOTALL):
        placeholder, escape, literal = match.groups()
        if literal is not None:
            parts.append(literal.encode())
        elif escape is not None:
            if escape not in _ESCAPES:
                raise _bad(f"\\{escape}", "escapes: \\n \\t \\r \\0 \\\\")
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
            part if isinstance(part, bytes) else _field(message, part) for part in parts
        )

    return format_template


def _bad(what: str, hint: str) -> CommandError:
    return CommandError(f"unknown {what} in the format", hint=hint, code=ExitCode.USAGE)


def _field(message: Any, name: str) -> bytes:
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
            return _bytes(message.key(), b"")
        case "s":
            return _bytes(message.value(), b"")
        case "h":
            return _headers_text(message)
        case "K":
            return str(_length(message.key())).encode()
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
        name.encode() + b"=" + _bytes(value, b"") for name, value in message.headers() or []
    )


def _json_value(data: bytes | str | None) -> object:
    if data is None or isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
