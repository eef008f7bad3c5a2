"""Settles deliveries: sends each token to the leader of its partition, until each has a result.

A repeated ack that is rejected with SETTLED counts as done: the message is not redelivered.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from grpc import aio

from moldau.client.queue.channels import ACK, EXTEND, NACK
from moldau.client.queue.rpc import RpcClient
from moldau.client.queue.rpc_failures import (
    REASON_NAMES,
    REASON_NUMBERS,
    RETRIABLE_REASONS,
    RpcFailure,
    failure_of,
)
from moldau.proto.v1 import queue_pb2 as pb

TOKENS_PER_CALL_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Ack:
    """The messages are done."""


@dataclass(frozen=True, slots=True)
class Nack:
    """Redeliver the messages after `delay_ms`, or after the group's backoff if it is None."""

    delay_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Extend:
    """Extend the leases."""

    visibility_ms: int


SettleAction = Ack | Nack | Extend


class SettleResult(NamedTuple):
    """The result of one token; reason 0: it was carried out."""

    reason: int
    message: str

    @property
    def is_done(self) -> bool:
        return self.reason == pb.REASON_UNSPECIFIED

    @property
    def name(self) -> str:
        return REASON_NAMES.get(self.reason, "INTERNAL")


DONE: Final = SettleResult(pb.REASON_UNSPECIFIED, "")


class Settler:
    """Acks, nacks and extends deliveries."""

    def __init__(self, rpc: RpcClient, *, settled_counts_as_done: bool = True) -> None:
        self._rpc = rpc
        self._settled_counts_as_done = settled_counts_as_done

    async def settle(
        self,
        group: str,
        consumer: str,
        tokens: Sequence[bytes],
        what: SettleAction,
        *,
        seconds_max: float | None = None,
    ) -> list[SettleResult]:
        """A result for each token, in order. Never raises: if a leader is not reached in time, its
        tokens get UNAVAILABLE or TIMED_OUT."""
        backoff = self._rpc.backoff(seconds_max)
        results: list[SettleResult | None] = [None] * len(tokens)
        uncertain: set[int] = set()
        left = list(range(len(tokens)))
        while left:
            routes = self._routes(tokens, left)
            rounds = [
                self._settle_at(
                    address,
                    group,
                    consumer,
                    tokens,
                    part,
                    what,
                    results,
                    uncertain,
                    backoff.try_seconds,
                )
                for address, indexes in routes.items()
                for part in _parts(indexes)
            ]
            waits = await asyncio.gather(*rounds)
            left = [index for index in left if _is_retriable(results[index])]
            if not left or backoff.is_over:
                break
            await self._rpc.resolver.refresh()
            await backoff.sleep_async(min((each for each in waits if each is not None), default=0))
        unreached = SettleResult(pb.UNAVAILABLE, "no broker could be reached in time")
        return [result or unreached for result in results]

    def _routes(self, tokens: Sequence[bytes], left: list[int]) -> dict[str, list[int]]:
        """Indexes by address. Unknown tokens go to any broker, which rejects them."""
        view = self._rpc.view
        candidates = self._rpc.resolver.candidates
        fallback = candidates[0] if candidates else ""
        routes: dict[str, list[int]] = {}
        for index in left:
            address = view.token_address(tokens[index]) or fallback
            routes.setdefault(address, []).append(index)
        routes.pop("", None)
        return routes

    async def _settle_at(
        self,
        address: str,
        group: str,
        consumer: str,
        tokens: Sequence[bytes],
        indexes: list[int],
        what: SettleAction,
        results: list[SettleResult | None],
        uncertain: set[int],
        seconds: float,
    ) -> float | None:
        """How long to wait before the next attempt; None: none is needed."""
        own = [tokens[index] for index in indexes]
        try:
            response = await self._call(address, group, consumer, own, what, seconds)
        except aio.AioRpcError as error:
            failure = failure_of(error, address)
            if failure.has_no_response and failure.is_uncertain:
                uncertain.update(indexes)
            result = _result_of(failure)
            for index in indexes:
                results[index] = result
            return failure.retry_seconds
        refused = {each.index: each for each in response.refused}
        for place, index in enumerate(indexes):
            found = refused.get(place)
            if found is None:
                results[index] = DONE
                continue
            # Done before, by a call whose response was lost: a nacked message may have been
            # delivered to another consumer by now.
            repeated = self._settled_counts_as_done or index in uncertain
            done_before = isinstance(what, Ack) and found.reason == pb.SETTLED and repeated
            nacked = isinstance(what, Nack) and index in uncertain and found.reason in _LEASE_LOST
            results[index] = (
                DONE if done_before or nacked else SettleResult(found.reason, found.message)
            )
        return 0.0 if any(_is_retriable(results[index]) for index in indexes) else None

    async def _call(
        self,
        address: str,
        group: str,
        consumer: str,
        tokens: list[bytes],
        what: SettleAction,
        seconds: float,
    ) -> pb.SettleResponse:
        call = self._rpc.channels.call
        if isinstance(what, Ack):
            acked = pb.AckRequest(group=group, consumer_id=consumer, tokens=tokens)
            return await call(address, ACK, acked, seconds_max=seconds)
        if isinstance(what, Nack):
            nacked = pb.NackRequest(
                group=group,
                consumer_id=consumer,
                tokens=tokens,
                delay_ms=what.delay_ms,
                reason=what.reason,
            )
            return await call(address, NACK, nacked, seconds_max=seconds)
        extended = pb.ExtendRequest(
            group=group, consumer_id=consumer, tokens=tokens, visibility_ms=what.visibility_ms
        )
        return await call(address, EXTEND, extended, seconds_max=seconds)


_LEASE_LOST: Final = frozenset({pb.EXPIRED, pb.NOT_HOLDER, pb.SETTLED, pb.LEADER_CHANGED})


def _is_retriable(result: SettleResult | None) -> bool:
    return result is None or result.reason in RETRIABLE_REASONS


def _result_of(failure: RpcFailure) -> SettleResult:
    if failure.reason in REASON_NUMBERS:
        return SettleResult(REASON_NUMBERS[failure.reason], failure.text)
    if failure.has_no_response:
        return SettleResult(pb.UNAVAILABLE, str(failure))
    return SettleResult(pb.INTERNAL, str(failure))


def _parts(indexes: list[int]) -> list[list[int]]:
    return [
        indexes[at : at + TOKENS_PER_CALL_MAX] for at in range(0, len(indexes), TOKENS_PER_CALL_MAX)
    ]
