"""The cluster of a backup, as all its commands see it; and the clients of their workers."""

import threading
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from moldau.client.cluster_client import ClusterClient
from moldau.client.errors import ClientError, TimedOutError, UnreachableError
from moldau.client.retry import Backoff, retry
from moldau.client.security import PLAIN_TEXT, Security
from moldau.client.wire.client import KafkaClient
from moldau.client.wire.group_offsets import GroupOffsets
from moldau.model.backup import ClusterCopy, QueueStates
from moldau.model.topology import NO_BROKER

T = TypeVar("T")

_CLIENT_SECONDS_MAX: Final = 60.0
_BROKER_SECONDS_MAX: Final = 30.0
"""A broker that has just failed counts as alive for some seconds; leaders change meanwhile."""
_RESPONSE_SECONDS_MAX: Final = 10.0
"""Of one broker. If it hangs, it no longer counts as alive then."""
_LEADER_SECONDS_MAX: Final = 15.0
"""Longer than an election, and than many a restart."""


class Source(NamedTuple):
    """The cluster that is copied, or into which a backup is restored."""

    cluster: ClusterClient
    bootstrap: str
    http_at: Callable[[str, float], ClusterClient]
    """A client of the HTTP API of one broker, with the time for a response."""
    security: Security = PLAIN_TEXT

    def client(self) -> KafkaClient:
        return KafkaClient(self.bootstrap, timeout=_CLIENT_SECONDS_MAX, security=self.security)

    def group_offsets(self) -> GroupOffsets:
        return GroupOffsets(self.bootstrap, self.security, seconds_max=_BROKER_SECONDS_MAX)

    def describe(self) -> ClusterCopy:
        """A topic is compacted if one of its brokers says so: each has defaults of its own, and
        compacts its own replicas. Those that are down lead nothing. Raises ClientError."""
        return _retried(self._describe)

    def leaderless(self, topics: Collection[str]) -> list[str]:
        """Partitions that nobody can read, not even after some seconds. Raises ClientError."""
        backoff = Backoff(_LEADER_SECONDS_MAX)
        while True:
            found = [
                f"{topic.name}-{each.partition}"
                for topic in _retried(self.cluster.topology).topics
                if topic.name in topics
                for each in topic.partitions
                if each.leader == NO_BROKER
            ]
            if not found or backoff.is_over:
                return found
            backoff.sleep()

    def queue(self, group: str, topic: str) -> QueueStates:
        """Raises ClientError."""
        return _retried(lambda: self.cluster.backup_queue(group, topic))

    def _describe(self) -> ClusterCopy:
        copies = [self.cluster.backup_cluster()]
        for broker in self.cluster.topology().brokers:
            if broker.alive:
                try:
                    http = self.http_at(str(broker.http), _RESPONSE_SECONDS_MAX)
                    copies.append(http.backup_cluster())
                except (UnreachableError, TimedOutError) as error:
                    raise UnreachableError(
                        f"broker {broker.id} does not say which topics it compacts: {error}",
                        hint="a backup needs the HTTP address of each broker that runs, as "
                        "`moldau broker list` shows it",
                    ) from None
        compacted = {topic.id for copy in copies for topic in copy.topics if topic.compacted}
        topics = (replace(each, compacted=each.id in compacted) for each in copies[0].topics)
        return replace(copies[0], topics=tuple(topics))


class Clients:
    """One client of the cluster for each thread: they are not thread-safe."""

    def __init__(self, source: Source | None) -> None:
        self._source = source
        self._local = threading.local()
        self._opened: list[KafkaClient] = []

    def mine(self) -> KafkaClient:
        found: KafkaClient | None = self._local.__dict__.get("client")
        if found is None:
            if self._source is None:
                raise ClientError("there is no cluster to compare with")
            found = self._local.client = self._source.client()
            self._opened.append(found)
        return found

    def close(self) -> None:
        for client in self._opened:
            client.close()


def _retried(ask: Callable[[], T]) -> T:
    return retry(ask, seconds_max=_BROKER_SECONDS_MAX, doing="read the state of the cluster")
