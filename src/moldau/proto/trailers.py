"""Trailers of failed calls of the gRPC API, and the encoding of text in them.

Trailers are printable ASCII, so a hint is percent-encoded, as gRPC encodes its status message.
"""

from typing import Final
from urllib.parse import quote, unquote

REASON_TRAILER: Final = "moldau-reason"
"""Name of a Reason."""
HINT_TRAILER: Final = "moldau-hint"
"""What to do next, for people."""
UNCERTAIN_TRAILER: Final = "moldau-uncertain"
"""`true`: the call may have taken effect."""
RETRY_TRAILER: Final = "moldau-retry-ms"
"""How long a client over its quota has to wait, in milliseconds."""

_PLAIN: Final = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"


def encode_text(text: str) -> str:
    return quote(text, safe=_PLAIN, errors="replace")


def decode_text(text: str) -> str:
    return unquote(text, errors="replace")
