"""Searches over all partitions of a topic, and live views of it."""

from typing import Final

from moldau.api.broker import Broker
from moldau.api.guard import Guard
from moldau.api.search.live import LiveBatch, LiveFeed, LiveWanted
from moldau.api.search.pages import IsDisconnected, Search, SearchFound
from moldau.metadata.image import Topic
from moldau.security.acl import ResourceType
from moldau.security.quotas import QuotaKey

_TOPIC: Final = ResourceType.TOPIC


class GuardedSearch:
    """Methods raise RefusedError."""

    __slots__ = ("_guard", "_service", "_views")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._service = broker.search
        self._views = broker.live

    async def page(
        self, topic: Topic, search: Search, is_disconnected: IsDisconnected
    ) -> SearchFound:
        """The next page; the client is charged for all that was looked at."""
        self._guard.check("search.page", _TOPIC, topic.name)
        if (meter := self._guard.meter()) is not None:
            meter.check(QuotaKey.FETCH)
        found = await self._service.page(topic, search, is_disconnected)
        # Rights may have ended while it waited.
        self._guard.check("search.page", _TOPIC, topic.name)
        if meter is not None:
            meter.take(QuotaKey.FETCH, found.bytes_read)
        return found

    def live(self, topic: Topic, wanted: LiveWanted) -> LiveFeed:
        """A feed of new messages, to be begun, read by `next_live`, and closed."""
        self._guard.check("search.live", _TOPIC, topic.name)
        return self._views.feed(topic, wanted)

    async def next_live(self, topic: Topic, feed: LiveFeed, seconds_max: float) -> LiveBatch | None:
        """What came in the feed; None after some time without anything.

        A client over its quota waits, and goes on.
        """
        self._guard.check("search.next_live", _TOPIC, topic.name)
        if (meter := self._guard.meter()) is not None:
            await meter.admitted(QuotaKey.FETCH)
            await meter.admitted(QuotaKey.REQUEST)
        batch = await self._views.next(feed, seconds_max)
        # Rights may have ended while it waited.
        self._guard.check("search.next_live", _TOPIC, topic.name)
        if meter is not None and batch is not None:
            meter.take(QuotaKey.FETCH, batch.bytes_read)
        return batch
