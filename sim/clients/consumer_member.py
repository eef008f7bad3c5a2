"""Members of the newer protocol (group.protocol=consumer), for which the broker assigns."""

import base64
from typing import Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatOwnedTopic,
)
from moldau.wire.messages.offset_commit import OffsetCommitRequest
from moldau.wire.messages.offset_fetch import OffsetFetchRequest
from sim.clients.group_member import GroupMember, at_least
from sim.clients.wire import COORDINATOR_GONE, Lost, Place

_JOIN, _LEAVE, _AWAY = 0, -1, -2
_FENCED: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_AGAIN: Final = COORDINATOR_GONE | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
}
_PATTERNS: Final = (
    "START.*",
    "^START[a-z]+$",
    "(START|no)\\w{1,5}",
    "START(?:[[:alpha:]]|x)?\\D*",
    "START[^-]+?",
    "(?i)NAME",
    "(?i:START).*",
    "\\QSTART\\E.*",
    "\\ASTART.*\\z",
    "(?P<some>START)\\x67",
    "START\\w{1}|\\.\\t",
)
"""START: how the topic begins; NAME: in capitals."""


class ConsumerMember(GroupMember):
    """Keeps its partitions until it has to revoke them, and confirms that it has."""

    def _pin(self) -> None:
        super()._pin()
        kafka, rng = self._kafka, self._rng
        at_least(kafka, OffsetCommitRequest, 9)
        at_least(kafka, OffsetFetchRequest, 9)
        self._version = rng.randint(*ConsumerGroupHeartbeatRequest.VERSIONS)
        kafka.pin(ConsumerGroupHeartbeatRequest, self._version)
        if self._version >= 1:
            self.member_id = self._new_id()
        self._pattern: str | None = None
        first = self._book.topics[0]
        if first in self._topics and self._version >= 1 and rng.random() < 0.5:
            pattern = rng.choice(_PATTERNS).replace("START", first[:2])
            self._pattern = pattern.replace("NAME", first.upper())
        self._assignor = rng.choice((None, "uniform", "range"))
        self._rebalance_ms = rng.choice((1_000, 5_000))
        self.epoch = _JOIN
        self._tells_all = True
        self._tells_owned = True
        self._heartbeat_at = 0.0

    def _new_id(self) -> str:
        return base64.urlsafe_b64encode(self._rng.randbytes(16)).decode().rstrip("=")

    def _fetching_as(self) -> tuple[str, int] | None:
        return self.member_id, self.epoch

    async def _keep_up(self) -> None:
        if self._scene.scheduler.now >= self._heartbeat_at:
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        request = self._request()
        self._tells_all = self._tells_owned = False
        sent_at = self._book.now()
        try:
            answer = await self._ask(request, seconds=3.0)
        except Lost:
            self._tells_all = True
            raise
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            await self._refused(code)
            return
        is_news = answer.member_epoch != self.epoch
        self.member_id, self.epoch = answer.member_id or self.member_id, answer.member_epoch
        interval = answer.heartbeat_interval_ms / 1000
        self._heartbeat_at = self._scene.scheduler.now + interval * self._rng.random()
        if answer.assignment is None:
            return
        names = {topic_id: name for name, topic_id in self._kafka.topic_ids.items()}
        given = {
            (names[topic.topic_id], index)
            for topic in answer.assignment.topic_partitions
            for index in topic.partitions
        }
        await self._reported(given, sent_at, is_news=is_news)

    async def _reported(self, given: set[Place], sent_at: int, *, is_news: bool) -> None:
        strange = {topic for topic, _ in given}.difference(self._topics)
        if strange:
            self._scene.violation(f"{self.name} wants {self._topics}, and got {strange}")
        gone = [place for place in self.owned if place not in given]
        if is_news:
            for place in self.owned.keys() & given:
                self._book.seen_alive(self.owned[place], sent_at, "a heartbeat")
        if gone and self._rng.random() < 0.5:
            await self.commit()
        if gone or given - self.owned.keys():
            self._heartbeat_at = 0.0
            self._tells_owned = True
        self._let_go(gone)
        self._take(given, sent_at)

    async def _refused(self, code: ErrorCode) -> None:
        self._look_again(code)
        self._tells_all = True
        if code in _FENCED:
            self._let_go(list(self.owned))
            self.epoch = _JOIN
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self._let_go(list(self.owned))
            self.epoch, self.member_id = _JOIN, self._new_id() if self._version >= 1 else ""
        elif code not in _AGAIN and code is not ErrorCode.UNRELEASED_INSTANCE_ID:
            self._unexpected("ConsumerGroupHeartbeat", code)
        await self._scene.pause(self._rng, 0.2)

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        is_all = self._tells_all or self.epoch == _JOIN
        by_topic: dict[str, list[int]] = {}
        for topic, index in self.owned:
            by_topic.setdefault(topic, []).append(index)
        owned = [
            HeartbeatOwnedTopic(topic_id=self._kafka.topic_ids[topic], partitions=sorted(some))
            for topic, some in by_topic.items()
        ]
        names = self._topics[1:] if self._pattern else self._topics
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self._instance_id if is_all else None,
            rebalance_timeout_ms=self._rebalance_ms if is_all else -1,
            subscribed_topic_names=names if is_all else None,
            subscribed_topic_regex=self._pattern if is_all else None,
            server_assignor=self._assignor if is_all else None,
            topic_partitions=owned if is_all or self._tells_owned else None,
        )

    async def _send_heartbeat(self, epoch: int) -> ErrorCode:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self._instance_id,
        )
        return ErrorCode((await self._ask(request, seconds=3.0)).error_code)

    async def leave(self) -> None:
        await self._go(_LEAVE)

    async def go_away(self) -> None:
        """A static member that is back soon. Raises Lost."""
        await self._go(_AWAY)

    async def _go(self, epoch: int) -> None:
        self._let_go(list(self.owned))
        if not self.member_id:
            return
        code = await self._send_heartbeat(epoch)
        self._look_again(code)
        if code in _AGAIN:
            raise Lost(code.name)
        if code and code not in _FENCED and code is not ErrorCode.FENCED_INSTANCE_ID:
            self._unexpected("leaving", code)
