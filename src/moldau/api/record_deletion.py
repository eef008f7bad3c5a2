"""Deletes the oldest records of partitions, on this broker and by an RPC to other leaders.

Kafka clients find the leaders by themselves. For other clients, any broker asks each leader once
for all of its partitions. A partition without a response may be trimmed nevertheless; to ask again
is safe.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from moldau.api.quotas import charged
from moldau.control.topic_service import TopicService
from moldau.metadata.image import Topic
from moldau.metadata.leaders import NO_LEADER_ID, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Offset
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.methods import PeerMethod

_SECONDS_MAX: Final = 10.0
_MARGIN_SECONDS: Final = 1.0
"""For the network: the leader's own timeout ends first, as it knows which partitions are done."""
_AT_ONCE_MAX: Final = 64


class _Request(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    topic_id: bytes
    wanted: tuple[tuple[int, int], ...]
    """Partitions, and the offset before which their records go."""


Result = Offset | RefusedError

_decode_request: Final = msgspec.msgpack.Decoder(_Request).decode
_decode_reply: Final = msgspec.msgpack.Decoder(list[int | tuple[int, str]]).decode
"""The start of each partition; or code and message."""


class RecordDeletion:
    def __init__(
        self,
        *,
        me: BrokerId,
        topics: TopicService,
        leader_of: Callable[[Topic, int], Leader],
        caller: PeerCaller,
    ) -> None:
        self._me = me
        self._topics = topics
        self._leader_of = leader_of
        self._caller = caller

    async def delete(self, topic: Topic, before: Mapping[int, int]) -> dict[int, Result]:
        """The new start of each partition, or why it could not be moved."""
        by_leader: dict[BrokerId, list[int]] = defaultdict(list)
        found: dict[int, Result] = {}
        for partition in before:
            leader = self._leader_of(topic, partition).broker
            if leader == NO_LEADER_ID:
                found[partition] = RefusedError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    f"{topic.name}-{partition} has no leader at the moment",
                )
            else:
                by_leader[leader].append(partition)
        requests = [
            _Request(topic.name, topic.topic_id, tuple((each, before[each]) for each in partitions))
            for partitions in by_leader.values()
        ]
        replies = await asyncio.gather(
            *(charged(self._ask(*each)) for each in zip(by_leader, requests, strict=True))
        )
        for request, results in zip(requests, replies, strict=True):
            found.update(
                (partition, result)
                for (partition, _), result in zip(request.wanted, results, strict=True)
            )
        return {partition: found[partition] for partition in before}

    async def _ask(self, leader: BrokerId, request: _Request) -> Sequence[Result]:
        if leader == self._me:
            return await self._delete_here(request)
        try:
            payload = msgspec.msgpack.encode(request)
            seconds = _SECONDS_MAX + _MARGIN_SECONDS
            reply = await self._caller.call(leader, PeerMethod.DELETE_RECORDS, payload, seconds)
            results = [_result(one) for one in _decode_reply(reply)]
            if len(results) != len(request.wanted):
                raise ValueError("a result per partition was expected")
        except RefusedError as error:
            return [error] * len(request.wanted)
        except (ValueError, *MALFORMED) as error:
            refusal = RefusedError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"invalid response of broker {leader}: {error}"
            )
            return [refusal] * len(request.wanted)
        return results

    async def _delete_here(self, request: _Request) -> list[Result]:
        places = asyncio.Semaphore(_AT_ONCE_MAX)

        async def one(partition: int, before: int) -> Result:
            async with places:
                try:
                    return await self._topics.delete_records(request.topic, partition, before)
                except RefusedError as error:
                    return error

        tasks = [asyncio.create_task(charged(one(*wanted))) for wanted in request.wanted]
        try:
            await asyncio.wait(tasks, timeout=_SECONDS_MAX)
        finally:
            # What was appended is committed nevertheless, if a majority comes back.
            for task in tasks:
                task.cancel()
        return [self._outcome(task) for task in tasks]

    @staticmethod
    def _outcome(task: asyncio.Task[Result]) -> Result:
        if not task.done() or task.cancelled():
            return RefusedError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"timed out after {_SECONDS_MAX:g} s; the records may still be deleted",
            )
        return task.result()

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """The RPC handler of the leader. Raises RefusedError."""
        request = decode_request(_decode_request, payload)
        topic = self._topics.image.topic(request.topic)
        if topic is None:
            # Unknown right after a start, or deleted: the client tries again and finds out.
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"Topic '{request.topic}' is not led by this broker",
            )
        if topic.topic_id != request.topic_id:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic '{request.topic}' was deleted and recreated",
            )
        return msgspec.msgpack.encode(
            [
                (int(one.code), str(one)) if isinstance(one, RefusedError) else one
                for one in await self._delete_here(request)
            ]
        )


def _result(reply: int | tuple[int, str]) -> Result:
    """Raises ValueError."""
    if isinstance(reply, int):
        return Offset(reply)
    return RefusedError(ErrorCode(reply[0]), reply[1])
