"""Asks every address that a command was given: do they respond, and is it one cluster?

Most commands are content with the first address that responds; a status must not be: a broker that
does not respond, or one of another cluster, is what it is asked for.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.cli.connection.clients import cluster_client
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.in_parallel import in_parallel
from moldau.cli.output import with_options
from moldau.model.cluster_problems import Problem

if TYPE_CHECKING:
    from moldau.client.cluster_client import ClusterClient
    from moldau.client.errors import ClientError
    from moldau.model.topology import Topology

_SECONDS_MAX: Final = 3.0
_ELECTION_SECONDS: Final = 1.0
"""Longer than a planned change of leaders takes until all brokers know of it."""


class Answers(NamedTuple):
    """The newest topology, and the addresses that did not respond."""

    topology: "Topology"
    failures: "Mapping[str, ClientError]"

    @property
    def problems(self) -> list[Problem]:
        """Of addresses of brokers that the topology reports as alive."""
        alive = {str(broker.http) for broker in self.topology.brokers if broker.alive}
        return [
            Problem(
                f"{address} does not respond: {error}",
                with_options(error.hint) or "check it: moldau doctor",
            )
            for address, error in self.failures.items()
            if address in alive
        ]

    @property
    def notes(self) -> list[str]:
        """Of other addresses: perhaps of brokers that were removed. They do no harm."""
        brokers = {str(broker.http) for broker in self.topology.brokers}
        return [
            f"{address} does not respond, and is the HTTP address of no broker here: {error}"
            for address, error in self.failures.items()
            if address not in brokers
        ]


def ask_all(addresses: Sequence[str]) -> Answers:
    """Raises ClientError if none responds, and CommandError if they are of several clusters."""
    # The clients are made here, since click's context is that of one thread.
    clients = {
        each: cluster_client([each], call_seconds_max=_SECONDS_MAX)
        for each in dict.fromkeys(addresses)
    }
    found = in_parallel({each: partial(_topology, client) for each, client in clients.items()})
    known: dict[str, Topology] = {}
    failures: dict[str, ClientError] = {}
    for address, answer in found.items():
        if isinstance(answer, Exception):
            failures[address] = answer
        else:
            known[address] = answer
    if not known:
        if len(failures) == 1:
            raise next(iter(failures.values()))
        # All of them in one message; unless one responds by now.
        again = cluster_client(list(clients), call_seconds_max=_SECONDS_MAX)
        return Answers(again.topology(), failures)
    check_one_cluster(known)
    return Answers(max(known.values(), key=_newness), failures)


def ask_settled(addresses: Sequence[str]) -> Answers:
    """As ask_all, and again a moment later if leaders are missing or replicas are behind.

    After each election it looks so, until the new leader has heard from the others. Nobody has to
    solve that.
    """
    found = ask_all(addresses)
    if found.topology.under_replicated or found.topology.leaderless:
        time.sleep(_ELECTION_SECONDS)
        found = ask_all(addresses)
    return found


def _newness(topology: "Topology") -> tuple[int, int]:
    """The larger, the newer: of two with one version, who sees more brokers."""
    return topology.version, sum(broker.alive for broker in topology.brokers)


def check_one_cluster(known: "Mapping[str, Topology]") -> None:
    """Raises CommandError if the addresses belong to several clusters."""
    by_cluster: dict[str, list[str]] = {}
    for address, topology in known.items():
        by_cluster.setdefault(topology.cluster_id, []).append(address)
    if len(by_cluster) > 1:
        shown = "; ".join(f"{', '.join(each)} to {name}" for name, each in by_cluster.items())
        first = next(iter(by_cluster.values()))
        raise CommandError(
            f"the addresses belong to {len(by_cluster)} clusters: {shown}",
            hint=f"name brokers of one cluster: --http {','.join(first)}",
            code=ExitCode.USAGE,
        )


def _topology(client: "ClusterClient") -> "Topology | ClientError":
    from moldau.client.errors import ClientError

    try:
        return client.topology()
    except ClientError as error:
        return error
