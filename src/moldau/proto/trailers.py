"""Owns what a refused call of the gRPC API says in its trailers, and how text is written there.

Trailers hold printable ASCII only, so a hint is percent-encoded, as gRPC does it with its own
message.
"""

from typing import Final
from urllib.parse import quote, unquote

REASON_TRAILER: Final = "moldau-reason"
"""A Reason by its name."""
HINT_TRAILER: Final = "moldau-hint"
"""What to do next, for people."""
UNCERTAIN_TRAILER: Final = "moldau-uncertain"
"""`true`: it may have been carried out all the same."""

_PLAIN: Final = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"


def encode_text(text: str) -> str:
    return quote(text, safe=_PLAIN, errors="replace")


def decode_text(text: str) -> str:
    return unquote(text, errors="replace")
