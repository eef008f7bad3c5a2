"""Queries about partitions that only their leaders can answer, by one RPC per leader."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicPartition
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.methods import PeerMethod

log = logging.getLogger(__name__)

_PARTITIONS_PER_CALL_MAX: Final = 10_000

PartitionKey = tuple[str, int, bytes]
"""Topic name, partition and topic id, as a topic may be recreated with the same name."""
_decode: Final = msgspec.msgpack.Decoder(list[PartitionKey]).decode

T = TypeVar("T")


async def query_leaders(
    caller: PeerCaller,
    method: PeerMethod,
    by_leader: Mapping[BrokerId, Sequence[PartitionKey]],
    decode: Callable[[bytes], Sequence[T | None]],
    seconds_max: float,
) -> dict[TopicPartition, T]:
    """Without the partitions whose leader does not respond, or responds None."""
    found: dict[TopicPartition, T] = {}

    async def query(leader: BrokerId, request: Sequence[PartitionKey]) -> None:
        try:
            payload = msgspec.msgpack.encode(request)
            response = decode(await caller.call(leader, method, payload, seconds_max))
        except (RefusedError, *MALFORMED) as error:
            log.debug("broker %d did not respond to %s: %s", leader, method.name, error)
            return
        for (name, index, _), one in zip(request, response, strict=False):
            if one is not None:
                found[TopicPartition(name, PartitionIndex(index))] = one

    await asyncio.gather(
        *(
            query(leader, request[at : at + _PARTITIONS_PER_CALL_MAX])
            for leader, request in by_leader.items()
            for at in range(0, len(request), _PARTITIONS_PER_CALL_MAX)
        )
    )
    return found


def respond_each(payload: bytes, respond: Callable[[str, int, bytes], object]) -> bytes:
    """The leader's response: `respond` for each partition. Raises RefusedError."""
    return msgspec.msgpack.encode([respond(*one) for one in decode_request(_decode, payload)])
