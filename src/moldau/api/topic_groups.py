"""The groups that consume a topic: their coordinators are asked by peer RPC.

First for the names only, as a client may not know of all groups; then for the offsets of those that
are shown. Brokers that do not respond are reported, so that a partial result is visible as such.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from moldau.api.asking import ask_each
from moldau.api.overview.group_lags import GroupLags
from moldau.control.cluster_service import ClusterService
from moldau.coordination.group_service import GroupService
from moldau.metadata.image import Topic
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.methods import PeerMethod

log = logging.getLogger(__name__)

_CALL_SECONDS_MAX: Final = 4.0
"""Longer than a coordinator waits for leaders."""
_NAMES_PER_BROKER_MAX: Final = 20_000
"""Limits the size of a response between brokers."""
OFFSETS_MAX: Final = 10_000
"""Committed offsets in one page: as many as a topic has partitions at most."""
_LOOKUPS_PER_TURN: Final = 5_000
_GROUPS_PER_TURN: Final = 100


class GroupOfTopic(NamedTuple):
    """A group that consumes a topic, as its coordinator knows it."""

    group_id: str
    state: str
    member_count: int
    offsets: tuple[tuple[int, int], ...]
    """Partition and committed offset."""
    lag_seconds: float | None = None
    """None: not known, or not asked for."""


class TopicGroupPage(NamedTuple):
    groups: list[GroupOfTopic]
    next: str | None
    """Behind which name there are more."""
    silent: list[BrokerId]


class _Request(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    partitions: int
    names: tuple[str, ...] | None
    """Whose offsets are wanted; None: only the names, of all."""


_decode_request: Final = msgspec.msgpack.Decoder(_Request).decode
_decode_groups: Final = msgspec.msgpack.Decoder(list[GroupOfTopic]).decode


class TopicGroups:
    """Asks the coordinators, and responds for those of this broker."""

    def __init__(
        self,
        *,
        me: BrokerId,
        cluster: ClusterService,
        groups: GroupService,
        lags: GroupLags,
        caller: PeerCaller,
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._groups = groups
        self._lags = lags
        self._caller = caller

    async def names(self, topic: Topic) -> tuple[list[str], list[BrokerId]]:
        """Of all groups that consume the topic, in order; and the brokers that did not respond."""
        found, silent = await self._ask_all(_Request(topic.name, len(topic.partitions), None))
        return sorted({group.group_id for group in found}), silent

    async def page(
        self, topic: Topic, names: Sequence[str], silent: Sequence[BrokerId], *, has_more: bool
    ) -> TopicGroupPage:
        """These groups with their offsets, without those that are gone meanwhile."""
        if not names:
            return TopicGroupPage([], None, list(silent))
        request = _Request(topic.name, len(topic.partitions), tuple(names))
        following = names[-1] if has_more else None
        groups, silent_now = await self._ask_all(request)
        found = {group.group_id: group for group in groups}
        return TopicGroupPage(
            [found[name] for name in names if name in found],
            following,
            sorted({*silent, *silent_now}),
        )

    async def _ask_all(self, request: _Request) -> tuple[list[GroupOfTopic], list[BrokerId]]:
        brokers = sorted(self._cluster.image.brokers)
        replies = await ask_each(
            self._caller,
            PeerMethod.GROUPS_OF_TOPIC,
            {broker: request for broker in brokers if broker in self._cluster.alive},
            _decode_groups,
            _CALL_SECONDS_MAX,
            me=self._me,
            here=self._here,
        )
        found = [group for broker in brokers for group in replies.get(broker, ())]
        return found, [broker for broker in brokers if broker not in replies]

    async def _here(self, request: _Request) -> list[GroupOfTopic]:
        """Raises RefusedError."""
        with_offsets = request.names is not None
        per_turn = max(1, min(_GROUPS_PER_TURN, _LOOKUPS_PER_TURN // max(1, request.partitions)))
        found: list[GroupOfTopic] = []
        for coordinator in self._groups.coordinators_here():
            names = coordinator.group_ids() if request.names is None else request.names
            for number, name in enumerate(names, 1):
                consumers = coordinator.consumers_of(
                    name, request.topic, request.partitions, with_offsets=with_offsets
                )
                if consumers is not None:
                    found.append(GroupOfTopic(name, *consumers))
                if number % per_turn == 0:
                    await asyncio.sleep(0)
            if not coordinator.loaded:
                raise RefusedError(
                    ErrorCode.NOT_COORDINATOR, "another broker coordinates its groups"
                )
        if len(found) > _NAMES_PER_BROKER_MAX:
            raise RefusedError(
                ErrorCode.POLICY_VIOLATION,
                f"{len(found)} groups; the limit of a list is {_NAMES_PER_BROKER_MAX}",
            )
        if request.names is None or not found:
            return found
        try:
            seconds = await self._lags.of_topic(
                request.topic, {group.group_id: group.offsets for group in found}
            )
        except RefusedError as error:
            log.debug("the lag of groups of a topic is not measured: %s", error)
            return found
        return [group._replace(lag_seconds=seconds.get(group.group_id)) for group in found]

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """Raises RefusedError."""
        return msgspec.msgpack.encode(await self._here(decode_request(_decode_request, payload)))


def groups_max(topic: Topic, size: int) -> int:
    """How many groups fit into a page of `size`; at least one."""
    return max(1, min(size, OFFSETS_MAX // max(1, len(topic.partitions))))
