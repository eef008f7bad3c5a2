"""Gets the topology and the metrics of all brokers, again and again.

A broker that does not respond costs the others nothing: each is asked by a thread of its own, with
a deadline, and its last scrape is forgotten, so that no rate spans its absence.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from moldau.cli.cluster.every_address import check_one_cluster
from moldau.cli.in_parallel import in_parallel
from moldau.cli.top.scrapes import Scrape, Span
from moldau.model.errors import MoldauError

if TYPE_CHECKING:
    from moldau.client.cluster_client import ClusterClient
    from moldau.client.security import Security
    from moldau.model.topology import Topology, TopologyBroker

CALL_SECONDS_MAX: Final = 2.0
"""A broker that is alive responds within milliseconds."""

T = TypeVar("T")


class Answer(NamedTuple):
    """What one broker returned: two scrapes, or why there is none."""

    span: Span | None
    failure: str = ""
    refusal: MoldauError | None = None
    """It responds, and rejects us."""
    reasons: tuple[str, ...] = ()
    """Why it is not ready."""


class Snapshot(NamedTuple):
    """What is known of the cluster at one time."""

    at: float
    """Seconds since 1970."""
    topology: "Topology"
    """The newest that any broker has returned."""
    answers: Mapping[int, Answer]
    unreachable_seconds: float = 0.0
    """Since when no broker returns a topology; 0: one does."""


class Poller:
    """Polls a cluster. Not thread-safe."""

    def __init__(
        self,
        addresses: Sequence[str],
        security: "Security",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = list(dict.fromkeys(addresses))
        self._security = security
        self._clock = clock
        self._scrapes: dict[int, Scrape] = {}
        self._topology: Topology | None = None
        self._reached: dict[int, str] = {}
        """The given address at which a broker responded. The one that it advertises may be for
        other networks."""
        self._failing: set[str] = set()
        self._seen_at = clock()

    def start(self) -> Snapshot:
        """The first snapshot. Raises ClientError if no broker responds, or all reject us, and
        CommandError if the addresses are of several clusters."""
        found = in_parallel({each: self._topology_at(each) for each in self._given})
        known = {at: each for at, each in found.items() if not isinstance(each, MoldauError)}
        self._failing = found.keys() - known.keys()
        if not known:
            self._topology = self._client(*self._given).topology()
        else:
            check_one_cluster(known)
            self._reached = {each.answered_by: at for at, each in known.items()}
            self._topology = max(known.values(), key=lambda each: each.version)
        first = self.poll()
        refusals = [each.refusal for each in first.answers.values() if each.refusal is not None]
        if refusals and not any(each.span for each in first.answers.values()):
            raise refusals[0]
        return first

    def poll(self) -> Snapshot:
        """A new snapshot; with the last topology if no broker responds."""
        fresh = self._next_topology()
        if fresh is not None:
            self._topology = fresh
            self._seen_at = self._clock()
        topology = self._topology
        if topology is None:
            raise RuntimeError("start() comes first")
        calls = {
            broker.id: self._scrape_at(address)
            for broker in topology.brokers
            if (address := self._address(broker))
        }
        found = in_parallel(calls)
        self._failing = {
            address
            for broker in topology.brokers
            if (address := self._address(broker)) and isinstance(found[broker.id], MoldauError)
        }
        return Snapshot(
            time.time(),
            topology,
            {
                broker.id: self._answer(broker.id, found.get(broker.id))
                for broker in topology.brokers
            },
            0.0 if fresh is not None else max(0.001, self._clock() - self._seen_at),
        )

    def _answer(self, broker: int, found: "_Scraped | MoldauError | None") -> Answer:
        from moldau.client.errors import TimedOutError, UnreachableError

        old = self._scrapes.pop(broker, None)
        if found is None:
            return Answer(None, "has no HTTP address")
        if isinstance(found, MoldauError):
            is_lost = isinstance(found, UnreachableError | TimedOutError)
            return Answer(None, str(found), None if is_lost else found)
        self._scrapes[broker] = found.scrape
        return Answer(Span(old, found.scrape), reasons=found.reasons)

    def _next_topology(self) -> "Topology | None":
        """From the controller, else any broker; those that failed last are asked last."""
        from moldau.cli.cluster.topology import is_current

        for address in self._in_order():
            found = self._topology_at(address)()
            if isinstance(found, MoldauError) or self._is_other(found):
                self._failing.add(address)
                continue
            if is_current(found):
                return found
            # A broker that is cut off: do the others know better?
            others = in_parallel({at: self._topology_at(at) for at in self._in_order()})
            known = [each for each in others.values() if not isinstance(each, MoldauError)]
            known = [each for each in (*known, found) if not self._is_other(each)]
            return max(known, key=lambda each: (is_current(each), each.version))
        return None

    def _is_other(self, found: "Topology") -> bool:
        """An address may now be that of another cluster."""
        return self._topology is not None and found.cluster_id != self._topology.cluster_id

    def _in_order(self) -> list[str]:
        brokers = () if self._topology is None else self._topology.brokers
        known = sorted(brokers, key=lambda each: not each.is_controller)
        addresses = [address for each in known if (address := self._address(each))]
        return sorted(
            dict.fromkeys([*addresses, *self._given]), key=lambda each: each in self._failing
        )

    def _address(self, broker: "TopologyBroker") -> str:
        return self._reached.get(broker.id) or (str(broker.http) if broker.http else "")

    def _client(self, *addresses: str) -> "ClusterClient":
        from moldau.client.cluster_client import ClusterClient

        return ClusterClient(addresses, call_seconds_max=CALL_SECONDS_MAX, security=self._security)

    def _topology_at(self, address: str) -> "Callable[[], Topology | MoldauError]":
        return lambda: _caught(lambda: self._client(address).topology())

    def _scrape_at(self, address: str) -> "Callable[[], _Scraped | MoldauError]":
        def scrape() -> _Scraped:
            client = self._client(address)
            text = client.metrics()
            found = Scrape(text, self._clock())
            is_ready = found.value("moldau_ready") != 0
            return _Scraped(found, () if is_ready else client.ready().reasons)

        return lambda: _caught(scrape)


class _Scraped(NamedTuple):
    scrape: Scrape
    reasons: tuple[str, ...]


def _caught(call: Callable[[], T]) -> T | MoldauError:
    try:
        return call()
    except MoldauError as error:
        return error
