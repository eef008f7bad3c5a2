"""Sends a request to each of several brokers at once; this one answers its own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from moldau.api.quotas import charged
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod

log = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")


async def ask_each(
    caller: PeerCaller,
    method: PeerMethod,
    requests: Mapping[BrokerId, A],
    decode: Callable[[bytes], T],
    seconds_max: float,
    *,
    me: BrokerId,
    here: Callable[[A], Awaitable[T]],
) -> dict[BrokerId, T]:
    """The replies, without brokers that do not respond, or refuse."""
    replies: dict[BrokerId, T] = {}

    async def ask(broker: BrokerId, request: A) -> None:
        try:
            if broker == me:
                replies[broker] = await here(request)
            else:
                payload = msgspec.msgpack.encode(request)
                replies[broker] = decode(await caller.call(broker, method, payload, seconds_max))
        except (RefusedError, *MALFORMED) as error:
            log.debug("broker %d did not respond to %s: %s", broker, method.name, error)

    await asyncio.gather(*(charged(ask(*each)) for each in requests.items()))
    return replies
