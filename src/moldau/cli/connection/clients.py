"""Clients of the HTTP API with the connection of the command that runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moldau.cli.connection.current import security_at

if TYPE_CHECKING:
    from moldau.client.cluster_client import ClusterClient


def cluster_client(addresses: Sequence[str], *, call_seconds_max: float = 5.0) -> "ClusterClient":
    """Raises ClientError."""
    from moldau.client.cluster_client import ClusterClient

    return ClusterClient(addresses, call_seconds_max=call_seconds_max, security=security_at)
