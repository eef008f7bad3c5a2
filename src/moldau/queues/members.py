"""The members of groups that use this broker, as a cached view per group.

The group's coordinator is authoritative. A partition leader has a view that is at most one second
old while it is used. A member that is missing in a view is looked up in a new one at once. A member
that was in the previous view and not in the new one has left, and is reported to `on_member_left`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from msgspec import Struct, field

from moldau.model.clock import Clock
from moldau.model.ids import TopicId
from moldau.queues.group_rpc_client import GroupRpcClient
from moldau.queues.group_rpc_messages import MemberDescription, unpack_partitions
from moldau.queues.types import ErrorReason, QueueRefusedError

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 1.0
_TRUSTED_SECONDS: Final = 10.0
"""Oldest view that is used while no coordinator responds: an election must not stop workers."""
_IDLE_SECONDS: Final = 30.0
"""A view that is unused for this long is dropped, or refreshed less often."""
_IDLE_REFRESH_SECONDS: Final = 10.0


class Member(Struct, frozen=True, kw_only=True):
    name: str
    topics: tuple[str, ...]
    is_queue: bool
    """Whether it is a member of a queue group, which shares messages rather than partitions."""
    owned: Mapping[TopicId, frozenset[int]] = field(default_factory=dict)
    """Its partitions, including those that are being revoked."""

    def is_assigned(self, topic: TopicId, partition: int) -> bool:
        return partition in self.owned.get(topic, ())


def member_from(described: MemberDescription) -> Member:
    owned = dict(unpack_partitions(described.assigned))
    for topic, indexes in unpack_partitions(described.revoking).items():
        owned[topic] = owned.get(topic, frozenset()) | indexes
    return Member(
        name=described.member, topics=described.topics, is_queue=described.is_queue, owned=owned
    )


class _View:
    __slots__ = ("at", "members", "refreshing", "used_at", "users")

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.at = float("-inf")
        self.used_at = float("-inf")
        self.users = 0
        """Calls that wait and rely on the view."""
        self.refreshing: asyncio.Task[None] | None = None


class Members:
    """The views of this broker. Methods raise QueueRefusedError."""

    def __init__(
        self, *, clock: Clock, calls: GroupRpcClient, on_member_left: Callable[[str, str], None]
    ) -> None:
        self._clock = clock
        self._calls = calls
        self._on_member_left = on_member_left
        self._views: dict[str, _View] = {}

    # ---- lookup

    async def member(self, group: str, name: str) -> Member:
        """A member, by a view that is not too old. Raises UNKNOWN_CONSUMER if there is none."""
        view = self._view(group)
        if self._clock.monotonic() - view.at > _TRUSTED_SECONDS or name not in view.members:
            await self.refresh(group)
        found = view.members.get(name)
        if found is None:
            raise QueueRefusedError(
                ErrorReason.UNKNOWN_CONSUMER,
                f"unknown consumer {name!r} of group {group!r}: connect again",
            )
        return found

    def known(self, group: str, name: str) -> Member | None:
        view = self._views.get(group)
        return None if view is None else view.members.get(name)

    async def count(self, group: str) -> int:
        await self.refresh(group)
        return len(self._view(group).members)

    @contextmanager
    def using(self, group: str) -> Iterator[None]:
        """Keeps the view up to date while a call waits."""
        view = self._view(group)
        view.users += 1
        try:
            yield
        finally:
            view.users -= 1
            view.used_at = self._clock.monotonic()

    # ---- refresh

    async def refresh(self, group: str) -> None:
        """Returns when the view is newer than this call."""
        view = self._view(group)
        if view.refreshing is not None:
            # That one may have been requested before the change that the caller looks for.
            await asyncio.wait([view.refreshing])
        await asyncio.shield(view.refreshing or self._start_refresh(group, view))

    def _start_refresh(self, group: str, view: _View) -> asyncio.Task[None]:
        view.refreshing = asyncio.create_task(self._fetch(group, view))
        view.refreshing.add_done_callback(_log_failure)
        return view.refreshing

    async def _fetch(self, group: str, view: _View) -> None:
        try:
            described = await self._calls.describe(group)
        finally:
            view.refreshing = None
        before = view.members
        view.members = {member.member: member_from(member) for member in described.members}
        view.at = self._clock.monotonic()
        for name in before:
            if name not in view.members:
                self._on_member_left(group, name)

    def left(self, group: str, name: str) -> None:
        view = self._views.get(group)
        if view is not None:
            view.members.pop(name, None)
        self._on_member_left(group, name)

    async def run(self) -> None:
        """Until cancelled: refresh the views that are used, drop the others."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            now = self._clock.monotonic()
            for group, view in list(self._views.items()):
                if view.refreshing is not None:
                    continue
                is_idle = not view.users and now - view.used_at > _IDLE_SECONDS
                # A member of a queue group may hold leases of this broker without polling.
                is_needed = any(one.is_queue or not is_idle for one in view.members.values())
                if not view.users and not is_needed:
                    del self._views[group]
                elif now - view.at >= (_IDLE_REFRESH_SECONDS if is_idle else REFRESH_SECONDS / 2):
                    self._start_refresh(group, view)

    def _view(self, group: str) -> _View:
        view = self._views.get(group)
        if view is None:
            view = self._views[group] = _View()
        view.used_at = self._clock.monotonic()
        return view


def _log_failure(task: asyncio.Task[None]) -> None:
    """The next refresh may succeed; meanwhile a view that is too old is not used."""
    if not task.cancelled() and isinstance(error := task.exception(), QueueRefusedError):
        log.debug("cannot refresh the members of a group: %s", error)
