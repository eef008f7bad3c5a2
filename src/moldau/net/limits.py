"""The limits of one client connection."""

from msgspec import Struct


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Limits of one connection."""

    request_bytes_max: int
    inflight_bytes_max: int
    inflight_requests_max: int
    outgoing_bytes_max: int = 4 * 1024 * 1024
    logs_protocol_errors: bool = True
    """Whether violations of the protocol are logged, once in a while for each address."""
