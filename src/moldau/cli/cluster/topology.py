"""Owns what commands do with the cluster's topology: where to ask for it, how to show and watch it.

The topology comes over HTTP, from any broker. Whoever watches a change asks all of them in turn,
since the broker that was asked first may be the one that goes.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import Brokers
from moldau.cli.output import confirm, counted, emit_table, progress_bar, say

if TYPE_CHECKING:
    from moldau.client.cluster_client import ClusterClient
    from moldau.model.topology import Topology, TopologyBroker

DEFAULT_HTTP = "127.0.0.1:8080"
POLL_SECONDS = 0.2
# A broker that is restarted or a leader that changes is no reason to give up at once.
_SILENCE_SECONDS_MAX = 30.0
_COPIES_MAX = 3
_NAMES_MAX = 5

_F = TypeVar("_F", bound=Callable[..., Any])


def http_option(function: _F) -> _F:
    """--http."""
    return click.option(
        "--http",
        type=Brokers(),
        envvar="MOLDAU_HTTP",
        default=DEFAULT_HTTP,
        show_default=True,
        metavar="HOST:PORT[,…]",
        is_eager=True,
        help="HTTP address of a broker; also MOLDAU_HTTP.",
    )(function)


def complete_brokers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Numbers of brokers for the tab key; silent where nobody answers."""
    from click.shell_completion import CompletionItem

    from moldau.client.cluster_client import ClusterClient
    from moldau.client.errors import ClientError

    addresses = str(ctx.params.get("http") or DEFAULT_HTTP).split(",")
    try:
        found = ClusterClient(addresses, call_seconds_max=0.5).topology().brokers
    except ClientError:
        return []
    return [
        CompletionItem(str(broker.id), help=str(broker.kafka))
        for broker in found
        if str(broker.id).startswith(incomplete)
    ]


def connect(http: str) -> tuple["ClusterClient", "Topology"]:
    """A client that knows every broker's address, and the topology as it is."""
    from moldau.client.cluster_client import ClusterClient

    addresses = http.split(",")
    topology = ClusterClient(addresses).topology()
    addresses = list(dict.fromkeys([*addresses, *_addresses(topology)]))
    if not _is_current(topology):
        topology = newest(addresses)
        addresses = list(dict.fromkeys([*_addresses(topology), *addresses]))
    return ClusterClient(addresses), topology


def _addresses(topology: "Topology", *, without: int | None = None) -> list[str]:
    return [str(one.http) for one in topology.brokers if one.http and one.id != without]


def _is_current(topology: "Topology") -> bool:
    """False if who answered may be cut off: it leaves the cluster, or hardly sees anybody."""
    me = next((one for one in topology.brokers if one.id == topology.answered_by), None)
    alive = sum(one.alive for one in topology.brokers)
    return me is not None and me.state == "active" and 2 * alive > len(topology.brokers)


def newest(addresses: Sequence[str]) -> "Topology":
    """What the broker says that knows the most. Raises ClientError if none answers."""
    from moldau.client.cluster_client import ClusterClient
    from moldau.client.errors import ClientError

    found: list[Topology] = []
    failure: ClientError | None = None
    for address in addresses:
        try:
            found.append(ClusterClient([address], call_seconds_max=2.0).topology())
        except ClientError as error:
            failure = error
    if not found and failure is not None:
        raise failure
    return max(found, key=lambda one: (one.version, sum(broker.alive for broker in one.brokers)))


def find_broker(topology: "Topology", number: int) -> "TopologyBroker":
    """Raises CommandError if there is none of that number."""
    for broker in topology.brokers:
        if broker.id == number:
            return broker
    numbers = ", ".join(str(broker.id) for broker in topology.brokers)
    raise CommandError(
        f"there is no broker {number} in this cluster",
        hint=f"its brokers: {numbers}",
        code=ExitCode.NOT_FOUND,
    )


def broker_rows(topology: "Topology") -> list[dict[str, Any]]:
    """A row per broker."""
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
        }
        for broker in topology.brokers
    ]


def partition_count(topology: "Topology") -> int:
    return sum(len(topic.partitions) for topic in topology.topics)


def headline(topology: "Topology") -> str:
    """The cluster in a line."""
    alive = sum(broker.alive for broker in topology.brokers)
    controller = topology.controller if topology.controller >= 0 else "none"
    return (
        f"cluster {topology.cluster_id}: {alive} of {counted(len(topology.brokers), 'broker')} "
        f"alive, controller {controller}; {counted(partition_count(topology), 'partition')}, "
        f"{topology.under_replicated} under-replicated, {topology.leaderless} without a leader"
    )


def problems(topology: "Topology") -> list[str]:
    """What is wrong with a cluster, in words."""
    found = [f"broker {broker.id} is not alive" for broker in topology.brokers if not broker.alive]
    if topology.controller < 0:
        found.append("there is no controller: fewer than half of the voters are alive?")
    if topology.leaderless:
        found.append(f"{counted(topology.leaderless, 'partition')} without a leader")
    if topology.under_replicated:
        found.append(f"{counted(topology.under_replicated, 'partition')} under-replicated")
    return found


class SingleCopies(NamedTuple):
    """Which topics have one copy, and the command that gives them more."""

    found: str
    command: str


def single_copies(topology: "Topology") -> SingleCopies | None:
    """Topics that are lost with one disk, although there are brokers for more."""
    well = [broker for broker in topology.brokers if broker.alive and broker.state == "active"]
    names = [
        topic.name
        for topic in topology.topics
        if not topic.internal and any(len(part.replicas) == 1 for part in topic.partitions)
    ]
    if len(well) < 2 or not names:
        return None
    brokers = ",".join(str(broker.id) for broker in well[:_COPIES_MAX])
    shown = ", ".join(names[:_NAMES_MAX])
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    have = "has one copy" if len(names) == 1 else "have one copy"
    return SingleCopies(f"{shown}{more} {have}", f"moldau partition move {names[0]} --to {brokers}")


def behind(topology: "Topology", number: int) -> list[str]:
    """Partitions in which a broker has a replica that is not in sync."""
    return [
        f"{topic.name}:{part.partition}"
        for topic in topology.topics
        for part in topic.partitions
        if number in part.replicas and number not in part.in_sync
    ]


class TopologyWatch:
    """Asks for the topology again and again; tolerates a silence, but not for ever.

    An answer older than what was seen before is none: a broker that has just started may not know
    of anybody yet.
    """

    def __init__(self, client: "ClusterClient", seconds_max: float, version: int = 0) -> None:
        self._client = client
        self._version = version
        self._deadline = time.monotonic() + seconds_max
        self._heard_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def look(self) -> "Topology | None":
        """The topology a moment later; None if nobody knew it this time."""
        from moldau.client.errors import TimedOutError, UnavailableError, UnreachableError

        time.sleep(POLL_SECONDS)
        try:
            topology = self._client.topology()
        except (UnreachableError, UnavailableError, TimedOutError):
            if time.monotonic() - self._heard_at > _SILENCE_SECONDS_MAX:
                raise
            return None
        self._heard_at = time.monotonic()
        if topology.version < self._version:
            return None
        self._version = topology.version
        return topology


def wait_in_sync(client: "ClusterClient", number: int, seconds_max: float) -> None:
    """Until a broker is alive and all its replicas are in sync. Raises CommandError if not."""
    watch = TopologyWatch(client, seconds_max)
    left: list[str] = []
    while not watch.is_over:
        topology = watch.look()
        if topology is None:
            continue
        broker = find_broker(topology, number)
        left = behind(topology, number)
        if broker.alive and not left:
            return
    state = f"behind in {', '.join(left[:5])}" if left else "not alive"
    raise CommandError(
        f"broker {number} was not in sync within {seconds_max:g} s ({state})",
        hint="it goes on by itself; look again: moldau cluster status",
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
    """Take a broker out of the cluster; True once it is gone."""
    from moldau.client.cluster_client import ClusterClient

    broker = find_broker(topology, number)
    _preview(topology, number)
    confirm(f"Remove broker {number} from the cluster?", yes=yes)
    client.leave(number)
    if not wait:
        say(f"broker {number} is being drained; watch it: moldau broker list")
        return False
    # It is not told any more that it is gone: the others know.
    others = _addresses(topology, without=number)
    watch = TopologyWatch(
        ClusterClient(others) if others else client, seconds_max, topology.version
    )
    total = max(broker.replicas, 1)
    with progress_bar(f"draining broker {number}", total) as advance:
        while not watch.is_over:
            now = watch.look()
            if now is None:
                continue
            found = next((one for one in now.brokers if one.id == number), None)
            if found is None:
                advance(total)
                return True
            if found.state != "draining":
                raise CommandError(f"the drain of broker {number} was taken back")
            advance(max(0, total - found.replicas))
    raise CommandError(
        f"broker {number} was not drained within {seconds_max:g} s",
        hint=f"it goes on by itself; watch it: moldau broker list "
        f"· take it back: moldau broker remove {number} --cancel",
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
