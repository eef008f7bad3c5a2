"""Health of each broker, checked at the addresses that it advertises to clients.

The topology shows which brokers send heartbeats. It does not show that a broker rejects writes or
that its advertised address is wrong, so each broker is called itself.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.cli.connection.current import current_security, security_at
from moldau.cli.in_parallel import in_parallel
from moldau.client.errors import TimedOutError, UnreachableError
from moldau.model.cluster_problems import Problem
from moldau.model.errors import MoldauError

if TYPE_CHECKING:
    from moldau.client.security import Security
    from moldau.model.topology import Endpoint, Topology, TopologyBroker

_SECONDS_MAX: Final = 3.0


def broker_problems(topology: "Topology", *, only: int | None = None) -> list[Problem]:
    """Problems that live brokers (or `only` one) report, and brokers that do not respond."""
    alive = [b for b in topology.brokers if b.alive and (only is None or b.id == only)]
    # Here, since click's context is that of one thread.
    calls = {b.id: partial(_problems_of, b, topology.cluster_id, BrokerLogins.of(b)) for b in alive}
    return [line for lines in in_parallel(calls).values() for line in lines]


class BrokerLogins(NamedTuple):
    """How to connect to one broker."""

    http: "Security"
    kafka: "Security"
    kafka_local: "Security"
    """With the token of its data directory, if that is on this machine."""

    @classmethod
    def of(cls, broker: "TopologyBroker") -> "BrokerLogins":
        return cls(
            http=security_at(str(broker.http)),
            kafka=current_security(),
            kafka_local=security_at(str(broker.kafka)),
        )


def _problems_of(broker: "TopologyBroker", cluster_id: str, logins: BrokerLogins) -> list[Problem]:
    found: list[Problem] = []
    if broker.http is not None:
        found += _not_ready(broker, broker.http, logins.http)
    if kafka := kafka_fault(broker, cluster_id, logins):
        remedy = f"check it: moldau doctor -b {broker.kafka} · else mend kafka.advertised there"
        found.append(Problem(f"broker {broker.id}: {kafka}", remedy))
    return found


def kafka_fault(
    broker: "TopologyBroker",
    cluster_id: str,
    logins: BrokerLogins,
    seconds_max: float = _SECONDS_MAX,
) -> str:
    """What is wrong with the Kafka address that a broker advertises; empty if nothing is."""
    found = _wrong_address(broker.kafka, cluster_id, logins.kafka, seconds_max)
    if found and logins.kafka_local != logins.kafka:
        # Not the first try: a listener without SASL rejects every login.
        found = _wrong_address(broker.kafka, cluster_id, logins.kafka_local, seconds_max)
    return found


def _not_ready(
    broker: "TopologyBroker", http: "Endpoint", security: "Security"
) -> Iterable[Problem]:
    from moldau.client.cluster_client import ClusterClient

    try:
        client = ClusterClient(
            [f"{http.host}:{http.port}"], call_seconds_max=_SECONDS_MAX, security=security
        )
        state = client.ready()
    except MoldauError as error:
        text = f"broker {broker.id}: does not respond at {http}, its HTTP address: {error}"
        return [Problem(text, "set http.advertised there, or open the port; see its log")]
    return [
        Problem(f"broker {broker.id}: {reason}", f"see its log, and: moldau doctor --http {http}")
        for reason in state.reasons
    ]


def _wrong_address(
    kafka: "Endpoint", cluster_id: str, security: "Security", seconds_max: float
) -> str:
    from moldau.client.wire.client import KafkaClient

    address = f"{kafka.host}:{kafka.port}"
    try:
        with KafkaClient(address, timeout=seconds_max, security=security) as client:
            found = client.cluster_id()
    except (MoldauError, OSError) as error:
        is_lost = isinstance(error, UnreachableError | TimedOutError | OSError)
        if security.sasl is not None and not is_lost:
            # It responds, and does not accept our login, as a token of HTTP.
            return ""
        return f"does not respond at {address}, its advertised address (kafka.advertised): {error}"
    if found != cluster_id:
        return f"advertises {address}, which belongs to another cluster (kafka.advertised)"
    return ""
