"""Connects a backup command with a cluster: its HTTP API, and the Kafka addresses that it names."""

from typing import TYPE_CHECKING

from moldau.cli.connection.clients import cluster_client
from moldau.cli.connection.current import current_security

if TYPE_CHECKING:
    from moldau.client.backup.source import Source
    from moldau.client.cluster_client import ClusterClient
    from moldau.client.security import Security

_CALL_SECONDS_MAX = 60.0
"""A restored run waits for its commit."""


def source_at(http: str) -> "Source":
    """Raises ClientError."""
    from moldau.client.backup.source import Source

    cluster = cluster_client(http.split(","), call_seconds_max=_CALL_SECONDS_MAX)
    topology = cluster.topology()
    addresses = [str(broker.kafka) for broker in topology.brokers if broker.alive]
    others = [str(broker.http) for broker in topology.brokers if broker.alive and broker.http]
    cluster = cluster_client(
        list(dict.fromkeys([*http.split(","), *others])), call_seconds_max=_CALL_SECONDS_MAX
    )
    bootstrap = ",".join(addresses)
    return Source(cluster, bootstrap, _http_at, _kafka_security(bootstrap))


def _http_at(address: str, seconds_max: float) -> "ClusterClient":
    return cluster_client([address], call_seconds_max=seconds_max)


def _kafka_security(bootstrap: str) -> "Security":
    """With a mechanism that the Kafka listeners have: HTTP has its own way."""
    from dataclasses import replace

    import click

    from moldau.cli.connection.options import values

    found = current_security()
    ctx = click.get_current_context()
    if found.sasl is None or found.sasl.username is None or "mechanism" in values(ctx):
        return found
    from moldau.cli.connection.current import tls_properties
    from moldau.cli.connection.negotiation import chosen_mechanism

    mechanism = chosen_mechanism(bootstrap, tls_properties(ctx))
    return replace(found, sasl=replace(found.sasl, mechanism=mechanism))
