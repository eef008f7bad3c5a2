"""Owns what this broker knows of the members of groups that use it: a view per group.

The coordinator of a group has the truth; whoever leads a partition has a view that is a second old
at most while it is used. Who is missing in a view is looked for at once in a newer one. Who was in
one and is not in the next is gone, and told to `on_gone`.
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
from moldau.queues.group_rpc_messages import GroupDescription, MemberDescription, unpacked
from moldau.queues.types import ErrorReason, QueueRefusedError

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 1.0
_TRUSTED_SECONDS: Final = 10.0
"""How old a view may be while no coordinator answers: an election shall not stop the workers."""
_IDLE_SECONDS: Final = 30.0
"""A view that was not used for so long is forgotten, or renewed less often."""
_SELDOM_SECONDS: Final = 10.0


class Member(Struct, frozen=True, kw_only=True):
    """One member of a group."""

    name: str
    topics: tuple[str, ...]
    is_queue: bool
    """Whether it shares messages with others, rather than partitions."""
    owned: Mapping[TopicId, frozenset[int]] = field(default_factory=dict)
    """What it has, be it that it must let go of it."""

    def owns(self, topic: TopicId, partition: int) -> bool:
        return partition in self.owned.get(topic, ())


def member_of(told: MemberDescription) -> Member:
    owned = dict(unpacked(told.assigned))
    for topic, indexes in unpacked(told.revoking).items():
        owned[topic] = owned.get(topic, frozenset()) | indexes
    return Member(name=told.member, topics=told.topics, is_queue=told.is_queue, owned=owned)


class _View:
    """What is known of one group."""

    __slots__ = ("at", "members", "refreshing", "used_at", "users")

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.at = float("-inf")
        self.used_at = float("-inf")
        self.users = 0
        """Calls that wait for something, and rely on it."""
        self.refreshing: asyncio.Task[None] | None = None


class Members:
    """The views of this broker. What raises, raises QueueRefusedError."""

    def __init__(
        self, *, clock: Clock, calls: GroupRpcClient, on_gone: Callable[[str, str], None]
    ) -> None:
        self._clock = clock
        self._calls = calls
        self._on_gone = on_gone
        self._views: dict[str, _View] = {}

    # ---- asking

    async def member(self, group: str, name: str) -> Member:
        """A member, by a view that is not too old. Raises UNKNOWN_CONSUMER if it is none."""
        view = self._view(group)
        if self._clock.monotonic() - view.at > _TRUSTED_SECONDS or name not in view.members:
            await self.refresh(group)
        found = view.members.get(name)
        if found is None:
            raise QueueRefusedError(
                ErrorReason.UNKNOWN_CONSUMER,
                f"{name!r} is no consumer of group {group!r}: connect again",
            )
        return found

    def known(self, group: str, name: str) -> Member | None:
        """A member as the view has it now."""
        view = self._views.get(group)
        return None if view is None else view.members.get(name)

    def is_following(self, group: str) -> bool:
        """Whether there is a view of the group."""
        return group in self._views

    async def count(self, group: str) -> int:
        await self.refresh(group)
        return len(self._view(group).members)

    @contextmanager
    def using(self, group: str) -> Iterator[None]:
        """The view is kept up to date while somebody waits."""
        view = self._view(group)
        view.users += 1
        try:
            yield
        finally:
            view.users -= 1
            view.used_at = self._clock.monotonic()

    # ---- keeping up

    async def refresh(self, group: str) -> None:
        """Returns when the view is newer than this call."""
        view = self._view(group)
        if view.refreshing is not None:
            # It may have been answered before what the asker wants to see was there.
            await asyncio.wait([view.refreshing])
        await asyncio.shield(view.refreshing or self._begin(group, view))

    def _begin(self, group: str, view: _View) -> asyncio.Task[None]:
        view.refreshing = asyncio.create_task(self._fetch(group, view))
        view.refreshing.add_done_callback(_note)
        return view.refreshing

    async def _fetch(self, group: str, view: _View) -> None:
        try:
            self._take(group, view, await self._calls.describe(group))
        finally:
            view.refreshing = None

    def _take(self, group: str, view: _View, told: GroupDescription) -> None:
        before = view.members
        view.members = {member.member: member_of(member) for member in told.members}
        view.at = self._clock.monotonic()
        for name in before:
            if name not in view.members:
                self._on_gone(group, name)

    def left(self, group: str, name: str) -> None:
        """A member has said that it leaves."""
        view = self._views.get(group)
        if view is not None:
            view.members.pop(name, None)
        self._on_gone(group, name)

    async def run(self) -> None:
        """Until cancelled: refresh the views that are used, forget those that are not."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            now = self._clock.monotonic()
            for group, view in list(self._views.items()):
                if view.refreshing is not None:
                    continue
                is_idle = not view.users and now - view.used_at > _IDLE_SECONDS
                # A member of a queue may have messages from here, for longer than it polls.
                is_needed = any(one.is_queue or not is_idle for one in view.members.values())
                if not view.users and not is_needed:
                    del self._views[group]
                elif now - view.at >= (_SELDOM_SECONDS if is_idle else REFRESH_SECONDS / 2):
                    self._begin(group, view)

    def _view(self, group: str) -> _View:
        view = self._views.get(group)
        if view is None:
            view = self._views[group] = _View()
        view.used_at = self._clock.monotonic()
        return view


def _note(task: asyncio.Task[None]) -> None:
    """The next look may do better; a view that is too old is not trusted."""
    if not task.cancelled() and isinstance(error := task.exception(), QueueRefusedError):
        log.debug("a group's members are not known anew: %s", error)
