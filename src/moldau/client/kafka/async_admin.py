"""AsyncAdmin: Admin for coroutines; each request runs in a thread."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from moldau.client.config import Brokers, bootstrap_list
from moldau.client.errors import ClientError
from moldau.client.kafka.admin import Admin
from moldau.client.kafka.thread_calls import in_thread

T = TypeVar("T")
P = ParamSpec("P")


def _in_thread(
    method: Callable[Concatenate[Admin, P], T],
) -> Callable[Concatenate["AsyncAdmin", P], Coroutine[Any, Any, T]]:
    """The same request for coroutines."""

    @functools.wraps(method)
    async def call(self: "AsyncAdmin", /, *args: P.args, **kwargs: P.kwargs) -> T:
        admin = await self._ready()
        return await in_thread(lambda: method(admin, *args, **kwargs), "moldau-admin")

    return call


class AsyncAdmin:
    """Administrative requests to one cluster. For any number of tasks of one event loop.

    Connects on `async with`, start or first use. A cancelled request may still be carried out.
    """

    def __init__(
        self,
        brokers: Brokers | None = None,
        extra: Mapping[str, str] | None = None,
        *,
        security: Mapping[str, str] | None = None,
    ) -> None:
        self.brokers = bootstrap_list(brokers)
        self._properties = {**(security or {}), **(extra or {})}
        self._admin: Admin | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<AsyncAdmin at {self.brokers}>"

    async def start(self) -> Self:
        """Connect. Raises UnreachableError."""
        await self._ready()
        return self

    nodes = _in_thread(Admin.nodes)
    topics = _in_thread(Admin.topics)
    topic = _in_thread(Admin.topic)
    create_topic = _in_thread(Admin.create_topic)
    delete_topic = _in_thread(Admin.delete_topic)
    add_partitions = _in_thread(Admin.add_partitions)
    topic_config = _in_thread(Admin.topic_config)
    alter_topic_config = _in_thread(Admin.alter_topic_config)
    groups = _in_thread(Admin.groups)
    group = _in_thread(Admin.group)
    delete_group = _in_thread(Admin.delete_group)
    offset_range = _in_thread(Admin.offset_range)
    offsets_at = _in_thread(Admin.offsets_at)
    commit_group = _in_thread(Admin.commit_group)
    delete_records = _in_thread(Admin.delete_records)

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        async with self._connecting:
            self._admin = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _ready(self) -> Admin:
        if self._closed:
            raise ClientError("the admin client is closed", hint="create a new one")
        async with self._connecting:
            if self._admin is None:
                make = Admin
                self._admin = await in_thread(lambda: make(self.brokers, self._properties))
            return self._admin
