"""Owns AsyncAdmin: the requests of Admin for coroutines, each in a thread while it is answered."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from moldau.client.config import Brokers, bootstrap_list
from moldau.client.errors import ClientError
from moldau.client.kafka.admin import (
    Admin,
    BrokerNode,
    ConfigInfo,
    GroupDetail,
    GroupInfo,
    TopicInfo,
)
from moldau.client.kafka.thread_calls import in_thread

T = TypeVar("T")


class AsyncAdmin:
    """Administrative requests to one cluster. For any number of tasks of one event loop.

    Connects when it is entered, started, or used first. A request that is cancelled may be carried
    out all the same.
    """

    def __init__(
        self, brokers: Brokers | None = None, extra: Mapping[str, str] | None = None
    ) -> None:
        self.brokers = bootstrap_list(brokers)
        self._extra = extra
        self._admin: Admin | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<AsyncAdmin at {self.brokers}>"

    async def start(self) -> Self:
        """Connect. Raises UnreachableError if nobody is there."""
        await self._ready()
        return self

    async def nodes(self) -> tuple[str, list[BrokerNode]]:
        """The cluster's id and its brokers."""
        return await self._ask(Admin.nodes)

    async def topics(self) -> list[TopicInfo]:
        """Every topic, by name."""
        return await self._ask(Admin.topics)

    async def topic(self, name: str, *, offsets: bool = False) -> TopicInfo:
        """One topic, on request with the offsets of its partitions. Raises NotFoundError."""
        return await self._ask(lambda admin: admin.topic(name, offsets=offsets))

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> bool:
        """-1 takes the broker's default. False if it is there and `exist_ok` says that is fine."""
        return await self._ask(
            lambda admin: admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                config=config,
                exist_ok=exist_ok,
            )
        )

    async def delete_topic(self, name: str) -> None:
        await self._ask(lambda admin: admin.delete_topic(name))

    async def add_partitions(self, name: str, total: int) -> None:
        """Raise the number of partitions to `total`."""
        await self._ask(lambda admin: admin.add_partitions(name, total))

    async def topic_config(self, name: str) -> list[ConfigInfo]:
        """Every configuration value of a topic, by name."""
        return await self._ask(lambda admin: admin.topic_config(name))

    async def alter_topic_config(
        self, name: str, changes: Mapping[str, str], removals: Iterable[str] = ()
    ) -> None:
        """Set some values and take others back to their default; the rest stays."""
        names = list(removals)
        await self._ask(lambda admin: admin.alter_topic_config(name, changes, names))

    async def groups(self) -> list[GroupInfo]:
        """Every consumer group, by name."""
        return await self._ask(Admin.groups)

    async def group(self, name: str) -> GroupDetail:
        """One group with members and lag. Raises NotFoundError if nobody knows it."""
        return await self._ask(lambda admin: admin.group(name))

    async def delete_group(self, name: str) -> None:
        """With all its offsets. Refused while it has members."""
        await self._ask(lambda admin: admin.delete_group(name))

    async def offset_range(
        self, parts: Sequence[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """First offset and end of those partitions that have a leader."""
        return await self._ask(lambda admin: admin.offset_range(parts))

    async def offsets_at(
        self, parts: Sequence[tuple[str, int]], time_ms: int
    ) -> dict[tuple[str, int], int]:
        """The first offset at or after that time; -1 where there is none."""
        return await self._ask(lambda admin: admin.offsets_at(parts, time_ms))

    async def commit_group(self, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """In the name of a group that has no members."""
        await self._ask(lambda admin: admin.commit_group(name, offsets))

    async def close(self) -> None:
        """Hang up."""
        self._closed = True
        async with self._connecting:
            self._admin = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _ask(self, request: Callable[[Admin], T]) -> T:
        admin = await self._ready()
        return await in_thread(lambda: request(admin), "moldau-admin")

    async def _ready(self) -> Admin:
        if self._closed:
            raise ClientError("the admin client is closed", hint="make a new one")
        async with self._connecting:
            if self._admin is None:
                make = Admin
                self._admin = await in_thread(lambda: make(self.brokers, self._extra))
            return self._admin
