"""Owns reading a partition in no group: from its leader, on from where another one took over."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime

from grpc import aio

from moldau.client.encoding import encode_timestamp
from moldau.client.errors import InvalidArgumentError
from moldau.client.queue.channels import READ_FROM
from moldau.client.queue.message import StoredMessage
from moldau.client.queue.rpc import PAUSE_SECONDS, PAUSE_SECONDS_MAX, RpcClient
from moldau.client.queue.rpc_failures import (
    RpcFailure,
    error_of,
    failure_of,
    retries_exhausted_error,
)
from moldau.proto.v1 import queue_pb2 as pb

_STARTS = {"earliest": pb.EARLIEST, "latest": pb.LATEST}


def read_request(
    topic: str,
    partition: int,
    *,
    offset: int | str | None,
    timestamp: int | datetime | None,
    max_messages: int | None,
    follow: bool,
) -> pb.ReadFromRequest:
    """Raises InvalidArgumentError."""
    request = pb.ReadFromRequest(topic=topic, partition=partition, follow=follow)
    if offset is not None and timestamp is not None:
        raise InvalidArgumentError("both an offset and a timestamp", hint="give one of them")
    if timestamp is not None:
        request.timestamp_ms = encode_timestamp(timestamp)
    elif isinstance(offset, str):
        if offset not in _STARTS:
            raise InvalidArgumentError(
                f"{offset!r} is no offset", hint='a number, "earliest" or "latest"'
            )
        request.start = _STARTS[offset]
    elif offset is not None:
        request.offset = offset
    else:
        request.start = pb.EARLIEST
    if max_messages is not None:
        if max_messages < 1:
            raise InvalidArgumentError(f"max_messages of {max_messages}", hint="1 or more")
        request.max_messages = max_messages
    return request


async def read(
    caller: RpcClient, request: pb.ReadFromRequest
) -> AsyncIterator[list[StoredMessage]]:
    """Messages as they come, in order, without gaps or repeats when the leader changes.

    Raises ClientError.
    """
    doing = f"read {request.topic}[{request.partition}]"
    failures: dict[str, RpcFailure] = {}
    answered_at = time.monotonic()
    pause = PAUSE_SECONDS
    while True:
        address = caller.view.leader_address(request.topic, request.partition)
        candidates = [address] if address else caller.resolver.candidates
        if candidates:
            call = caller.channels.read(candidates[0], READ_FROM, request)
            try:
                async for answer in call:
                    answered_at, pause = time.monotonic(), PAUSE_SECONDS
                    request.offset = answer.next_offset
                    yield [StoredMessage(message) for message in answer.messages]
                    if request.max_messages:
                        request.max_messages -= len(answer.messages)
                        if request.max_messages <= 0:
                            return
                return
            except aio.AioRpcError as error:
                failure = failures[candidates[0]] = failure_of(error, candidates[0])
                if not failure.may_repeat:
                    raise error_of(failure, doing) from error
                if time.monotonic() - answered_at > caller.seconds_max:
                    raise retries_exhausted_error(failures, doing, caller.seconds_max) from error
            finally:
                call.cancel()
        await caller.resolver.refresh()
        await asyncio.sleep(pause)
        pause = min(pause * 2, PAUSE_SECONDS_MAX)
