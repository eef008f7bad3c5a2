"""The limits of the HTTP listener, and the connection counts it keeps."""

from typing import Final

from msgspec import Struct


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Limits that protect the broker from HTTP clients."""

    connections_max: int = 256
    connections_per_address_max: int = 192
    """One address cannot take the place of all others. At both limits, a connection that waits for
    its client is closed for a newcomer."""
    tls_per_second_per_address_max: float = 100.0
    """New connections with TLS: a handshake takes milliseconds of the event loop."""
    keep_alive_seconds_max: int = 10
    """An idle connection is closed after this."""
    request_seconds_max: float = 10.0
    """A request that takes longer to arrive is aborted."""
    reply_stall_seconds_max: float = 60.0
    """A client that reads nothing of its reply for longer is disconnected."""
    backlog: int = 128
    buffered_bytes_max: int = 64 * 1024 * 1024
    """Of all request bodies and large replies in memory together."""


class ConnectionCounts(Struct, kw_only=True):
    """Kept by the web server, for /metrics."""

    open: int = 0
    accepted_total: int = 0
    refused_total: int = 0
    """Above a limit."""


DEFAULT_LIMITS: Final = HttpLimits()
