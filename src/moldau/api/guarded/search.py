"""Searches over all partitions of a topic."""

from typing import Final

from moldau.api.broker import Broker
from moldau.api.guard import Guard
from moldau.api.search.pages import IsDisconnected, Search, SearchFound
from moldau.metadata.image import Topic
from moldau.security.acl import ResourceType
from moldau.security.quotas import QuotaKey

_TOPIC: Final = ResourceType.TOPIC


class GuardedSearch:
    """Methods raise RefusedError."""

    __slots__ = ("_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._service = broker.search

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
