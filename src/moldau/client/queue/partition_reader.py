"""Reads a partition without a group, from its leader; continues at the next one if that changes."""

from collections.abc import AsyncIterator
from datetime import datetime

from grpc import aio

from moldau.client.encoding import encode_timestamp
from moldau.client.errors import InvalidArgumentError
from moldau.client.queue.channels import READ_FROM
from moldau.client.queue.message import StoredMessage
from moldau.client.queue.rpc import RpcClient
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
        raise InvalidArgumentError("both offset and timestamp given", hint="pass one of them")
    if timestamp is not None:
        request.timestamp_ms = encode_timestamp(timestamp)
    elif isinstance(offset, str):
        if offset not in _STARTS:
            raise InvalidArgumentError(
                f"invalid offset {offset!r}", hint='a number, "earliest" or "latest"'
            )
        request.start = _STARTS[offset]
    elif offset is not None:
        request.offset = offset
    else:
        request.start = pb.EARLIEST
    if max_messages is not None:
        if max_messages < 1:
            raise InvalidArgumentError(f"max_messages must be 1 or more, not {max_messages}")
        request.max_messages = max_messages
    return request


async def read(rpc: RpcClient, request: pb.ReadFromRequest) -> AsyncIterator[list[StoredMessage]]:
    """Yields messages in order, without gaps or duplicates if the leader changes.

    Raises ClientError.
    """
    doing = f"read {request.topic}[{request.partition}]"
    failures: dict[str, RpcFailure] = {}
    backoff = rpc.backoff()
    while True:
        pause = 0.0
        address = rpc.view.leader_address(request.topic, request.partition)
        candidates = [address] if address else rpc.resolver.candidates
        if candidates:
            call = rpc.channels.read(candidates[0], READ_FROM, request)
            try:
                async for response in call:
                    backoff.restart()
                    request.offset = response.next_offset
                    yield [StoredMessage(message) for message in response.messages]
                    if request.max_messages:
                        request.max_messages -= len(response.messages)
                        if request.max_messages <= 0:
                            return
                return
            except aio.AioRpcError as error:
                failure = failures[candidates[0]] = failure_of(error, candidates[0])
                pause = failure.retry_seconds
                if not failure.is_retriable:
                    raise error_of(failure, doing) from error
                if backoff.is_over:
                    raise retries_exhausted_error(failures, doing, rpc.seconds_max) from error
            finally:
                call.cancel()
        await rpc.resolver.refresh()
        await backoff.sleep_async(pause)
