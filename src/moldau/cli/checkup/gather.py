"""Asks every broker of a cluster, all at once, for what `moldau doctor` judges.

Each broker is called at all four of its addresses: Kafka, gRPC, HTTP and Raft. Nothing is changed.
"""

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from moldau.cli.checkup.facts import (
    BrokerFacts,
    ClockReading,
    ClusterFacts,
    PortFault,
    StuckGroup,
)
from moldau.cli.cluster.health import BrokerLogins, kafka_fault
from moldau.cli.connection.current import current_security, security_at
from moldau.cli.in_parallel import in_parallel
from moldau.client.errors import ClientError, NotFoundError, TimedOutError, UnreachableError
from moldau.client.retry import connect_failure
from moldau.model.errors import MoldauError
from moldau.model.topology import HTTP_ADDRESS_SETTING

if TYPE_CHECKING:
    from moldau.client.security import Security
    from moldau.model.broker_report import IdleGroup
    from moldau.model.topology import Topology, TopologyBroker

T = TypeVar("T")

FIND_SECONDS_MAX: Final = 1.0
CALL_SECONDS_MAX: Final = 1.5
_GROUPS_MAX: Final = 50
_SETTINGS_FRAME: Final = b"\x04"
_HTTP2_SETTINGS: Final = b"\0\0\0" + _SETTINGS_FRAME + b"\0\0\0\0\0"
_HTTP2_START: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _HTTP2_SETTINGS
_TLS_ALERT: Final = b"\x15"


class GivenAddresses(NamedTuple):
    """Where to ask for the cluster: HTTP addresses, and Kafka addresses to find them by."""

    http: tuple[str, ...] = ()
    kafka: str = ""


def find_cluster(
    given: GivenAddresses,
) -> "tuple[Topology, dict[str, str], dict[str, str]]":
    """The newest topology; the given addresses of other clusters, and those without response.

    Raises MoldauError if no address responds.
    """
    # Here, since click's context is that of one thread.
    kafka = {address: current_security() for address in given.kafka.split(",") if address}
    named: dict[str, str] = {}
    failures: dict[str, MoldauError] = {}
    for address, found in _at_once(_http_address, kafka):
        if isinstance(found, MoldauError):
            failures[address] = found
        else:
            named[found] = address
    asked = {address: security_at(address) for address in (*given.http, *named)}
    topologies: list[tuple[str, Topology]] = []
    for address, answer in _at_once(_topology, asked):
        name = address if address in given.http else named[address]
        if isinstance(answer, MoldauError):
            failures[name] = answer
        else:
            topologies.append((name, answer))
    if not topologies:
        # The words of one that responds, as by a rejection, say most.
        raise min(
            failures.values(), key=lambda one: isinstance(one, UnreachableError | TimedOutError)
        )
    first = topologies[0][1].cluster_id
    others = {name: one.cluster_id for name, one in topologies if one.cluster_id != first}
    own = [one for _, one in topologies if one.cluster_id == first]
    newest = max(own, key=lambda one: (one.version, sum(each.alive for each in one.brokers)))
    return newest, others, {name: str(error) for name, error in failures.items()}


def _at_once(
    call: "Callable[[str, Security], T]", asked: "Mapping[str, Security]"
) -> "Iterable[tuple[str, T]]":
    calls = {address: partial(call, address, security) for address, security in asked.items()}
    return in_parallel(calls).items()


def _topology(address: str, security: "Security") -> "Topology | MoldauError":
    from moldau.client.cluster_client import ClusterClient

    try:
        return ClusterClient(
            [address], call_seconds_max=CALL_SECONDS_MAX, security=security
        ).topology()
    except MoldauError as error:
        return error


def _http_address(kafka: str, security: "Security") -> str | MoldauError:
    """The HTTP address of the broker at a Kafka address, or of another one of its cluster."""
    from moldau.client.wire.config_admin import ConfigAdmin

    try:
        with ConfigAdmin(kafka, security, seconds_max=FIND_SECONDS_MAX) as admin:
            addresses = admin.addresses()
            # The one that was asked first: another one may not respond.
            order = sorted(addresses, key=lambda number: addresses[number] != kafka)
            for number in order[:1]:
                for one in admin.settings(number, [HTTP_ADDRESS_SETTING]):
                    if one.name == HTTP_ADDRESS_SETTING and one.value:
                        return one.value
    except (MoldauError, OSError) as error:
        return error if isinstance(error, MoldauError) else ClientError(str(error))
    return ClientError(
        f"the broker at {kafka} does not name its HTTP address",
        hint="pass it: moldau doctor --http HOST:8080",
    )


def gather(
    topology: "Topology",
    *,
    idle_ms: int,
    other_clusters: Mapping[str, str] | None = None,
    unreachable: Mapping[str, str] | None = None,
) -> ClusterFacts:
    """Ask every live broker; a dead one is only tried at its addresses."""
    logins = {one.id: BrokerLogins.of(one) for one in topology.brokers}
    calls: dict[tuple[int, str], Callable[[], BrokerFacts | PortFault | None]] = {}
    for broker in topology.brokers:
        login = logins[broker.id]
        calls[broker.id, "http"] = partial(_over_http, broker, login, idle_ms)
        calls[broker.id, "kafka"] = partial(_kafka, broker, topology.cluster_id, login)
        calls[broker.id, "grpc"] = partial(_grpc, broker)
        calls[broker.id, "raft"] = partial(_raft, broker)
    found = in_parallel(calls)
    facts = tuple(
        _with_faults(one, [found[number, port] for port in ("kafka", "grpc", "raft")])
        for (number, _), one in found.items()
        if isinstance(one, BrokerFacts)
    )
    groups, unchecked = _groups_of(facts)
    return ClusterFacts(
        topology=topology,
        brokers=facts,
        now_s=time.time(),
        other_clusters=other_clusters or {},
        unreachable=unreachable or {},
        stuck_groups=_stuck(topology, groups, idle_ms),
        groups_unchecked=unchecked,
    )


def _with_faults(facts: BrokerFacts, others: "Iterable[object]") -> BrokerFacts:
    faults = [one for one in others if isinstance(one, PortFault)]
    return replace(facts, faults=(*facts.faults, *faults))


def _over_http(broker: "TopologyBroker", logins: BrokerLogins, idle_ms: int) -> BrokerFacts:
    """The report of a broker, its clock, and why it is not ready."""
    from moldau.client.cluster_client import ClusterClient

    if broker.http is None:
        return BrokerFacts(broker=broker, no_report="it has no HTTP address")
    address = str(broker.http)
    client = ClusterClient([address], call_seconds_max=CALL_SECONDS_MAX, security=logins.http)
    try:
        reasons = client.ready().reasons
    except (UnreachableError, TimedOutError) as error:
        fault = PortFault(port="http", address=address, reason=_reason(error, address))
        return BrokerFacts(broker=broker, faults=(fault,), no_report="it cannot be reached")
    except MoldauError as error:
        reasons = (str(error),)
    sent = time.time()
    try:
        report = client.report(idle_ms)
    except NotFoundError:
        why = "its version does not have GET /api/v1/report"
        return BrokerFacts(broker=broker, not_ready=reasons, no_report=why)
    except MoldauError as error:
        return BrokerFacts(broker=broker, not_ready=reasons, no_report=str(error))
    received = time.time()
    clock = ClockReading(
        ahead_ms=report.now_ms - (sent + received) * 500,
        uncertain_ms=(received - sent) * 500,
    )
    return BrokerFacts(broker=broker, not_ready=reasons, report=report, clock=clock)


def _kafka(broker: "TopologyBroker", cluster_id: str, logins: BrokerLogins) -> PortFault | None:
    reason = kafka_fault(broker, cluster_id, logins, CALL_SECONDS_MAX)
    address = str(broker.kafka)
    return PortFault(port="kafka", address=address, reason=reason) if reason else None


def _grpc(broker: "TopologyBroker") -> PortFault | None:
    """A gRPC server sends its HTTP/2 settings first, or wants TLS, and closes the connection."""
    if broker.grpc is None:
        return None
    address = str(broker.grpc)
    try:
        with socket.create_connection(broker.grpc, CALL_SECONDS_MAX) as connection:
            connection.sendall(_HTTP2_START)
            head = connection.recv(len(_HTTP2_SETTINGS))
    except (ConnectionResetError, BrokenPipeError):
        # It was reached, and takes TLS only: its certificate is checked by its file.
        return None
    except OSError as error:
        reason = connect_failure(error, CALL_SECONDS_MAX)
        return PortFault(port="grpc", address=address, reason=reason)
    if not head or head[:1] == _TLS_ALERT or head[3:4] == _SETTINGS_FRAME:
        return None
    return PortFault(port="grpc", address=address, reason="another program listens there")


def _raft(broker: "TopologyBroker") -> PortFault | None:
    """Connects only: a peer that does not prove the cluster's secret gets no response."""
    if broker.raft is None:
        return None
    try:
        socket.create_connection(broker.raft, CALL_SECONDS_MAX).close()
    except OSError as error:
        reason = connect_failure(error, CALL_SECONDS_MAX)
        return PortFault(port="raft", address=str(broker.raft), reason=reason)
    return None


def _reason(error: MoldauError, address: str) -> str:
    """Without the address, which the finding names."""
    return str(error).replace(f"cannot reach {address} ", "").strip("()")


def _groups_of(facts: Sequence[BrokerFacts]) -> "tuple[list[IdleGroup], int]":
    reports = [one.report for one in facts if one.report is not None]
    groups = [group for report in reports for group in report.idle_groups]
    return groups, sum(report.groups_unchecked for report in reports)


def _stuck(
    topology: "Topology", groups: "Sequence[IdleGroup]", idle_ms: int
) -> tuple[StuckGroup, ...]:
    """Those with a record that has waited for longer than `idle_ms`, and those without commits.

    The age of a commit alone says little: a topic may have been quiet until just now.
    """
    from moldau.client.wire.client import KafkaClient

    found = [
        StuckGroup(group=group, waits_longer_than_ms=0) for group in groups if not group.positions
    ]
    late = [group for group in groups if group.positions][:_GROUPS_MAX]
    if not late:
        return tuple(found)
    brokers = ",".join(str(one.kafka) for one in topology.brokers if one.alive)
    since = int(time.time() * 1000) - idle_ms
    with KafkaClient(brokers, timeout=CALL_SECONDS_MAX, security=current_security()) as client:
        for group in late:
            position = group.positions[0]
            try:
                newer = client.list_offset(position.topic, position.partition, since)
            except (MoldauError, OSError):
                continue
            if newer < 0 or newer > position.committed:
                found.append(StuckGroup(group=group, waits_longer_than_ms=idle_ms))
    return tuple(found)
