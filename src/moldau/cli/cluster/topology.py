"""Fetches, prints and watches the cluster's topology, over HTTP from any broker.

A command that waits for a change calls the brokers in turn, since any of them may be the one that
leaves.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from moldau.cli.cluster.every_address import Answers, ask_all, ask_settled
from moldau.cli.connection.clients import cluster_client
from moldau.cli.connection.current import security_in
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import Brokers, address_option, completions
from moldau.cli.output import confirm, counted, emit_table, progress_bar, say
from moldau.model.errors import MoldauError

if TYPE_CHECKING:
    from moldau.client.cluster_client import ClusterClient
    from moldau.model.topology import Topology, TopologyBroker

DEFAULT_HTTP = "127.0.0.1:8080"
POLL_SECONDS = 0.2
# Longer than a broker restart or a leader change takes.
_NO_RESPONSE_SECONDS_MAX = 30.0
_COPIES_MAX = 3
_NAMES_MAX = 5

_F = TypeVar("_F", bound=Callable[..., Any])


class HttpAddresses(Brokers):
    """As of brokers; also http:// and https://HOST:PORT."""

    name = "addresses"

    def check(self, addresses: str) -> None:
        from moldau.client.addresses import split_brokers

        bare = addresses.replace("https://", "").replace("http://", "")
        split_brokers(bare, port_default=8080)


def http_option(function: _F) -> _F:
    return address_option(
        "--http",
        kind=HttpAddresses(),
        variable="MOLDAU_HTTP",
        default=DEFAULT_HTTP,
        help_text="HTTP address of a broker",
    )(function)


def complete_brokers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Broker ids for shell completion; empty if no broker responds."""
    from moldau.client.cluster_client import ClusterClient

    addresses = str(ctx.params.get("http") or DEFAULT_HTTP).split(",")
    try:
        security = security_in(ctx, ask=False)
        client = ClusterClient(addresses, call_seconds_max=0.5, security=security)
        found = client.topology().brokers
    except MoldauError:
        return []
    return completions(incomplete, {str(broker.id): str(broker.kafka) for broker in found})


def connect(http: str, *, call_seconds_max: float = 5.0) -> tuple["ClusterClient", "Topology"]:
    """A client with every broker's address, and the current topology."""
    addresses = http.split(",")
    topology = cluster_client(addresses).topology()
    addresses = list(dict.fromkeys([*addresses, *_addresses(topology)]))
    if not is_current(topology):
        # A partitioned or removed broker still responds, with an old topology.
        topology = ask_all(addresses).topology
        addresses = list(dict.fromkeys([*_addresses(topology), *addresses]))
    return cluster_client(addresses, call_seconds_max=call_seconds_max), topology


def _addresses(topology: "Topology", *, without: Sequence[int] = ()) -> list[str]:
    return [str(one.http) for one in topology.brokers if one.http and one.id not in without]


def ask_every_address(http: str) -> Answers:
    """As `connect`, but of all the addresses given: which of them do not respond?

    Raises CommandError if they are of several clusters.
    """
    found = ask_settled(http.split(","))
    if is_current(found.topology):
        return found
    others = list(dict.fromkeys([*_addresses(found.topology), *http.split(",")]))
    return found._replace(topology=ask_all(others).topology)


def is_current(topology: "Topology") -> bool:
    """False if the responding broker is leaving, or sees only a minority of brokers alive."""
    me = next((one for one in topology.brokers if one.id == topology.answered_by), None)
    alive = sum(one.alive for one in topology.brokers)
    return me is not None and me.state == "active" and 2 * alive > len(topology.brokers)


def find_broker(topology: "Topology", number: int) -> "TopologyBroker":
    """Raises CommandError for an unknown id."""
    for broker in topology.brokers:
        if broker.id == number:
            return broker
    numbers = ", ".join(str(broker.id) for broker in topology.brokers)
    raise CommandError(
        f"there is no broker {number} in this cluster",
        hint=f"brokers: {numbers}",
        code=ExitCode.NOT_FOUND,
    )


def broker_rows(topology: "Topology") -> list[dict[str, Any]]:
    return [
        {
            "id": broker.id,
            "state": broker.state,
            "alive": broker.alive,
            "controller": broker.is_controller,
            "leaders": broker.leaders,
            "replicas": broker.replicas,
            "kafka": str(broker.kafka),
            "http": str(broker.http) if broker.http else None,
            "raft": str(broker.raft) if broker.raft else None,
            "rack": broker.rack,
            "machine": broker.machine,
        }
        for broker in topology.brokers
    ]


def partition_count(topology: "Topology") -> int:
    return sum(len(topic.partitions) for topic in topology.topics)


def headline(topology: "Topology") -> str:
    alive = sum(broker.alive for broker in topology.brokers)
    controller = topology.controller if topology.controller >= 0 else "none"
    return (
        f"cluster {topology.cluster_id}: {alive} of {counted(len(topology.brokers), 'broker')} "
        f"alive, controller {controller}; {counted(partition_count(topology), 'partition')}, "
        f"{topology.under_replicated} under-replicated, {topology.leaderless} without a leader"
    )


class SingleCopies(NamedTuple):
    """Topics with a single replica, and the command that adds replicas."""

    text: str
    command: str


def single_copies(topology: "Topology") -> SingleCopies | None:
    """Topics that one disk failure loses although other brokers could hold replicas."""
    healthy = [broker for broker in topology.brokers if broker.alive and broker.state == "active"]
    names = [
        topic.name
        for topic in topology.topics
        if not topic.internal and any(len(part.replicas) == 1 for part in topic.partitions)
    ]
    if len(healthy) < 2 or not names:
        return None
    brokers = ",".join(str(broker.id) for broker in healthy[:_COPIES_MAX])
    shown = ", ".join(names[:_NAMES_MAX])
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    have = "has one replica" if len(names) == 1 else "have one replica"
    return SingleCopies(f"{shown}{more} {have}", f"moldau partition move {names[0]} --to {brokers}")


def shared_machines(topology: "Topology") -> list[str]:
    """Partitions with two replicas on a machine, while another one that may hold one has none."""
    places = {one.id: one.machine or one.id for one in topology.brokers}
    usable = {places[one.id] for one in topology.brokers if one.alive and one.state == "active"}
    found = []
    for topic in topology.topics:
        for part in topic.partitions:
            replicas = [one for one in part.replicas if one not in part.removing]
            used = {places.get(one, one) for one in replicas}
            if len(used) < len(replicas) and not usable <= used:
                found.append(f"{topic.name}:{part.partition}")
    return found


def behind(topology: "Topology", number: int) -> list[str]:
    """Partitions whose replica on this broker is not in sync."""
    return [
        f"{topic.name}:{part.partition}"
        for topic in topology.topics
        for part in topic.partitions
        if number in part.replicas and number not in part.in_sync
    ]


class TopologyWatch:
    """Polls the topology until a deadline; tolerates brokers that do not respond for a while.

    Ignores a topology older than one already seen: a broker that has just started may be behind.
    """

    def __init__(self, client: "ClusterClient", seconds_max: float, version: int = 0) -> None:
        self._client = client
        self._version = version
        self._deadline = time.monotonic() + seconds_max
        self._response_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def poll(self) -> "Topology | None":
        """The topology after a short pause; None if no broker returned a new one."""
        from moldau.client.errors import TimedOutError, UnavailableError, UnreachableError

        time.sleep(POLL_SECONDS)
        try:
            topology = self._client.topology()
        except (UnreachableError, UnavailableError, TimedOutError):
            if time.monotonic() - self._response_at > _NO_RESPONSE_SECONDS_MAX:
                raise
            return None
        self._response_at = time.monotonic()
        if topology.version < self._version:
            return None
        self._version = topology.version
        return topology


def wait_in_sync(client: "ClusterClient", number: int, seconds_max: float) -> None:
    """Wait until a broker is alive and in sync. Raises CommandError at the deadline."""
    watch = TopologyWatch(client, seconds_max)
    left: list[str] = []
    while not watch.is_over:
        topology = watch.poll()
        if topology is None:
            continue
        broker = find_broker(topology, number)
        left = behind(topology, number)
        if broker.alive and not left:
            return
    state = f"behind in {', '.join(left[:5])}" if left else "not alive"
    raise CommandError(
        f"broker {number} was not in sync within {seconds_max:g} s ({state})",
        hint="it continues in the background; check it: moldau cluster status",
    )


def drain(
    client: "ClusterClient",
    topology: "Topology",
    number: int,
    *,
    yes: bool,
    wait: bool,
    seconds_max: float,
) -> bool:
    """Drain a broker; True once it has left the cluster."""
    return drain_all(client, topology, [number], yes=yes, wait=wait, seconds_max=seconds_max)


def drain_all(
    client: "ClusterClient",
    topology: "Topology",
    numbers: Sequence[int],
    *,
    yes: bool,
    wait: bool,
    seconds_max: float,
) -> bool:
    """Drain some brokers together, so that none gets replicas of another; True once all have left
    the cluster."""
    for number in numbers:
        find_broker(topology, number)
        _preview(topology, number)
    listed = ", ".join(map(str, numbers))
    confirm(f"Remove broker {listed} from the cluster?", yes=yes)
    for number in numbers:
        client.leave(number)
    if not wait:
        say(f"broker {listed} is being drained; watch it: moldau broker list")
        return False
    # A removed broker does not learn that it has left; the others know.
    others = _addresses(topology, without=numbers)
    return all(_await_drained(client, topology, one, others, seconds_max) for one in numbers)


def _await_drained(
    client: "ClusterClient",
    topology: "Topology",
    number: int,
    others: Sequence[str],
    seconds_max: float,
) -> bool:
    broker = find_broker(topology, number)
    watch = TopologyWatch(
        cluster_client(others) if others else client, seconds_max, topology.version
    )
    total = max(broker.replicas, 1)
    with progress_bar(f"draining broker {number}", total) as advance:
        while not watch.is_over:
            now = watch.poll()
            if now is None:
                continue
            found = next((one for one in now.brokers if one.id == number), None)
            if found is None:
                advance(total)
                return True
            if found.state != "draining":
                raise CommandError(f"the drain of broker {number} was cancelled")
            advance(max(0, total - found.replicas))
    raise CommandError(
        f"broker {number} was not drained within {seconds_max:g} s",
        hint=f"it continues in the background; watch it: moldau broker list "
        f"· cancel it: moldau broker remove {number} --cancel",
    )


def _preview(topology: "Topology", number: int) -> None:
    rows = []
    total = 0
    for topic in topology.topics:
        held = [part for part in topic.partitions if number in part.replicas]
        total += len(held)
        if held:
            rows.append(
                {
                    "topic": topic.name,
                    "replicas": len(held),
                    "led": sum(part.leader == number for part in held),
                }
            )
    others = sum(broker.alive and broker.id != number for broker in topology.brokers)
    if not rows:
        say(f"broker {number} holds no replicas")
        return
    verb = "moves" if total == 1 else "move"
    say(f"{counted(total, 'replica')} {verb} from broker {number} to {counted(others, 'other')}:")
    emit_table(rows, indent="  ")
