"""Owns how tokens come back: each to the leader of its partition, until every one has a verdict.

A repeated ack that hears SETTLED is done: the message comes to nobody any more.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from grpc import aio

from moldau.client.queue.channels import ACK, EXTEND, NACK
from moldau.client.queue.rpc import PAUSE_SECONDS, PAUSE_SECONDS_MAX, RpcClient
from moldau.client.queue.rpc_failures import RpcFailure, failure_of
from moldau.proto.v1 import queue_pb2 as pb

TOKENS_PER_CALL_MAX: Final = 1_000
_NAMES: Final[dict[int, str]] = {number: name for name, number in pb.Reason.items()}
_REASONS: Final[dict[str, int]] = dict(pb.Reason.items())
_AGAIN: Final = frozenset({pb.NOT_LEADER, pb.UNAVAILABLE, pb.BUSY})


@dataclass(frozen=True, slots=True)
class Ack:
    """The messages are done."""


@dataclass(frozen=True, slots=True)
class Nack:
    """They are to be delivered again; `delay_ms` None: as the group's backoff says."""

    delay_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Extend:
    """They take longer."""

    visibility_ms: int


SettleAction = Ack | Nack | Extend


class SettleResult(NamedTuple):
    """Of one token; reason 0: it was carried out."""

    reason: int
    message: str

    @property
    def is_done(self) -> bool:
        return self.reason == pb.REASON_UNSPECIFIED

    @property
    def name(self) -> str:
        return _NAMES.get(self.reason, "INTERNAL")


DONE: Final = SettleResult(pb.REASON_UNSPECIFIED, "")


class Settler:
    """Brings tokens back."""

    def __init__(self, caller: RpcClient, *, settled_counts_as_done: bool = True) -> None:
        self._caller = caller
        self._takes_settled_for_done = settled_counts_as_done

    async def settle(
        self,
        group: str,
        consumer: str,
        tokens: Sequence[bytes],
        what: SettleAction,
        *,
        seconds_max: float | None = None,
    ) -> list[SettleResult]:
        """A verdict for each token, in order. Raises nothing: whoever is not reached in time leaves
        its tokens with UNAVAILABLE or TIMED_OUT."""
        seconds = self._caller.seconds_max if seconds_max is None else seconds_max
        deadline = time.monotonic() + seconds
        verdicts: list[SettleResult | None] = [None] * len(tokens)
        uncertain: set[int] = set()
        left = list(range(len(tokens)))
        pause = PAUSE_SECONDS
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
                    verdicts,
                    uncertain,
                    max(0.001, min(deadline - time.monotonic(), max(1.0, seconds / 3))),
                )
                for address, indexes in routes.items()
                for part in _parts(indexes)
            ]
            await asyncio.gather(*rounds)
            left = [index for index in left if self._goes_on(verdicts[index])]
            if not left or time.monotonic() >= deadline:
                break
            await self._caller.resolver.refresh()
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
        return [
            verdict or SettleResult(pb.UNAVAILABLE, "nobody could be asked in time")
            for verdict in verdicts
        ]

    def _routes(self, tokens: Sequence[bytes], left: list[int]) -> dict[str, list[int]]:
        """Indexes by address. Who is none of ours goes to anybody, who says so."""
        view = self._caller.view
        candidates = self._caller.resolver.candidates
        somewhere = candidates[0] if candidates else ""
        routes: dict[str, list[int]] = {}
        for index in left:
            address = view.token_address(tokens[index]) or somewhere
            routes.setdefault(address, []).append(index)
        routes.pop("", None)
        return routes

    def _goes_on(self, verdict: SettleResult | None) -> bool:
        return verdict is None or verdict.reason in _AGAIN

    async def _settle_at(
        self,
        address: str,
        group: str,
        consumer: str,
        tokens: Sequence[bytes],
        indexes: list[int],
        what: SettleAction,
        verdicts: list[SettleResult | None],
        uncertain: set[int],
        seconds: float,
    ) -> None:
        own = [tokens[index] for index in indexes]
        try:
            answer = await self._call(address, group, consumer, own, what, seconds)
        except aio.AioRpcError as error:
            failure = failure_of(error, address)
            if failure.is_silent and failure.is_uncertain:
                uncertain.update(indexes)
            verdict = _verdict_of(failure)
            for index in indexes:
                verdicts[index] = verdict
            return
        refused = {each.index: each for each in answer.refused}
        for place, index in enumerate(indexes):
            found = refused.get(place)
            if found is None:
                verdicts[index] = DONE
                continue
            # Done before, by the call whose answer was lost: a message that was given back is
            # nobody's, or another's, by now.
            repeated = self._takes_settled_for_done or index in uncertain
            done_before = isinstance(what, Ack) and found.reason == pb.SETTLED and repeated
            given_back = isinstance(what, Nack) and index in uncertain and found.reason in _GONE
            verdicts[index] = (
                DONE if done_before or given_back else SettleResult(found.reason, found.message)
            )

    async def _call(
        self,
        address: str,
        group: str,
        consumer: str,
        tokens: list[bytes],
        what: SettleAction,
        seconds: float,
    ) -> pb.SettleResponse:
        call = self._caller.channels.call
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


_GONE: Final = frozenset({pb.EXPIRED, pb.NOT_HOLDER, pb.SETTLED, pb.LEADER_CHANGED})


def _verdict_of(failure: RpcFailure) -> SettleResult:
    if failure.reason in _REASONS:
        return SettleResult(_REASONS[failure.reason], failure.text)
    if failure.is_silent:
        return SettleResult(pb.UNAVAILABLE, str(failure))
    return SettleResult(pb.INTERNAL, str(failure))


def _parts(indexes: list[int]) -> list[list[int]]:
    return [
        indexes[at : at + TOKENS_PER_CALL_MAX] for at in range(0, len(indexes), TOKENS_PER_CALL_MAX)
    ]
