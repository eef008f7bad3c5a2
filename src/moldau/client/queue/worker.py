"""Owns AsyncWorker: a consumer of a group that stays one, whatever happens to brokers and to it."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from moldau.client.errors import ClientError, InvalidArgumentError, LeaseLostError
from moldau.client.queue.ack_batcher import AckBatcher
from moldau.client.queue.batch_size import BatchSizer
from moldau.client.queue.channels import CONNECT, DISCONNECT
from moldau.client.queue.message import AsyncQueueMessage, DeliveredMessage
from moldau.client.queue.outgoing import milliseconds
from moldau.client.queue.rpc import CallFailed, RpcClient
from moldau.client.queue.rpc_failures import error_for, retries_exhausted_error
from moldau.client.queue.session import Session
from moldau.client.queue.settler import DONE, Extend, Nack, Settler, SettleResult
from moldau.proto.v1 import queue_pb2 as pb

log = logging.getLogger(__name__)

POLL_MESSAGES: Final = 100
POLL_MESSAGES_MAX: Final = 10_000
POLL_WAIT_SECONDS: Final = 1.0
_GOODBYE_SECONDS_MAX: Final = 3.0
_GIVE_BACK_SECONDS_MAX: Final = 5.0
_UNREACHED: Final = frozenset({"UNAVAILABLE", "NOT_LEADER", "BUSY", "TIMED_OUT"})
_LOST_HINT: Final = "it is delivered again: take more time by extend, or a longer visibility"
_HINTS: Final = {
    "SETTLED": "it is done already",
    "UNKNOWN_CONSUMER": "its worker was closed or evicted: what it had is delivered again",
    "OTHER_GROUP": "settle it by the worker that polled it",
    "BAD_TOKEN": "settle what poll has brought, by the worker that polled it",
}

Messages = DeliveredMessage | Iterable[DeliveredMessage]


class RefusedMessage(NamedTuple):
    """A message that could not be settled; `reason` is the API's name for why."""

    message: DeliveredMessage
    reason: str
    text: str

    def error(self) -> ClientError:
        """As an error: LeaseLostError, or UnavailableError if nobody could be asked."""
        what = f"{self.message!r} cannot be settled: {self.text or self.reason}"
        if self.reason in _UNREACHED or self.reason == "INVALID_ARGUMENT":
            return error_for(self.reason, what)
        return LeaseLostError(what, self.reason, hint=_HINTS.get(self.reason, _LOST_HINT))


class AsyncWorker:
    """A consumer of a group. Any number of tasks may use it."""

    def __init__(self, caller: RpcClient, settler: Settler, request: pb.ConnectRequest) -> None:
        self._caller = caller
        self._settler = settler
        self._request = request
        self._acks = AckBatcher(settler, request.group)
        self._connecting = asyncio.Lock()
        self._session: Session | None = None
        self._closed = False

    async def start(self) -> Self:
        """Become a consumer. Raises ClientError."""
        await self._ready()
        return self

    @property
    def group(self) -> str:
        return self._request.group

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def consumer(self) -> str:
        """The name that the group knows it by; another one after an eviction."""
        return self._current.consumer

    @property
    def mode(self) -> str:
        return "ordered" if self._current.is_ordered else "queue"

    @property
    def visibility(self) -> float:
        """How many seconds a message is leased unless the poll says otherwise."""
        return self._current.settings.visibility_ms / 1000

    @property
    def dead_letter_topic(self) -> str:
        """Where messages go after their last attempt; empty in ordered groups."""
        return self._current.settings.dead_letter_topic

    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that are polled; in a queue group all of them."""
        return self._current.partitions

    # ---- messages

    async def poll(
        self,
        max_messages: int = POLL_MESSAGES,
        wait: float = POLL_WAIT_SECONDS,
        *,
        visibility: float | None = None,
    ) -> list[AsyncQueueMessage]:
        """Up to `max_messages`, as soon as there are any; empty after `wait` seconds.

        While brokers are away for less than the client's timeout it looks as if there were nothing;
        after that it raises UnreachableError or UnavailableError.
        """
        consumer, raws = await self.poll_raw(max_messages, wait, visibility)
        return [AsyncQueueMessage(raw, consumer, self) for raw in raws]

    async def poll_raw(
        self, max_messages: int, wait: float, visibility: float | None
    ) -> tuple[str, list[pb.Message]]:
        """The same as the API has them, and to whom they are delivered."""
        if not isinstance(max_messages, int) or not 1 <= max_messages <= POLL_MESSAGES_MAX:
            raise InvalidArgumentError(
                f"max_messages of {max_messages!r}", hint=f"1 to {POLL_MESSAGES_MAX:,}"
            )
        visibility_ms = 0 if visibility is None else max(1, milliseconds(visibility, "visibility"))
        deadline = time.monotonic() + milliseconds(wait, "a wait") / 1000
        while True:
            session = await self._ready()
            session.polling()
            left = max(0.0, deadline - time.monotonic())
            try:
                polled = await session.poller.poll(max_messages, left, visibility_ms=visibility_ms)
            except CallFailed as failed:
                if not failed.failure.is_evicted:
                    raise failed.error(f"poll for {self.group}") from failed.__cause__
                session.eviction = failed.failure
                continue
            if not polled.messages:
                self._check_outage(session)
            session.polled(polled.messages)
            return session.consumer, polled.messages

    async def __aiter__(self) -> AsyncIterator[AsyncQueueMessage]:
        """Messages one by one, without end; each is to be settled. Takes as many at a time as are
        done within their lease; what is left when the loop ends is given back."""
        pace = BatchSizer()
        rest: deque[AsyncQueueMessage] = deque()
        try:
            while not self._closed:
                rest.extend(await self.poll(pace.count))
                pace.taken(len(rest))
                while rest:
                    yield rest.popleft()
                pace.done(self.visibility)
        finally:
            await self.give_back(rest)

    async def give_back(self, messages: Collection[DeliveredMessage]) -> None:
        """Let others have what was polled and is not wanted. An ordered group repeats it anyway."""
        if messages and not self._closed and self.mode == "queue":
            await self.nack(messages, delay=0, reason="it was polled, but not taken")

    async def ack(self, messages: Messages) -> list[RefusedMessage]:
        """They are done. Returns those that were refused: empty is all well.

        One that was acked before counts as done. In an ordered group everything before them in
        their partitions is done too.
        """
        batch = _listed(messages)
        verdicts = await self._by_consumer(batch, self._acks.ack)
        return self._settled(batch, verdicts)

    async def nack(
        self,
        messages: Messages,
        *,
        delay: float | None = None,
        reason: str = "",
    ) -> list[RefusedMessage]:
        """They could not be done: deliver them again. Returns those that were refused."""
        delay_ms = None if delay is None else milliseconds(delay, "a delay")
        batch = _listed(messages)
        verdicts = await self._settle(batch, Nack(delay_ms, reason))
        return self._settled(batch, verdicts)

    async def extend(self, messages: Messages, seconds: float) -> list[RefusedMessage]:
        """They take longer: their leases last so long from now. Returns those that were refused."""
        batch = _listed(messages)
        what = Extend(max(1, milliseconds(seconds, "an extension")))
        verdicts = await self._settle(batch, what)
        return _refused(batch, verdicts)

    async def ack_one(self, message: DeliveredMessage) -> None:
        """`ack` of one message, which raises."""
        _raise(await self.ack([message]))

    async def nack_one(
        self, message: DeliveredMessage, *, delay: float | None = None, reason: str = ""
    ) -> None:
        """`nack` of one message, which raises."""
        _raise(await self.nack([message], delay=delay, reason=reason))

    async def extend_one(self, message: DeliveredMessage, seconds: float) -> None:
        """`extend` of one message, which raises."""
        _raise(await self.extend([message], seconds))

    # ---- the end

    async def close(self) -> None:
        """Leave the group: what is not settled is for others, at once."""
        if self._closed:
            return
        self._closed = True
        async with self._connecting:
            session = self._session
            if session is None:
                return
            await session.close()
            if session.eviction is None:
                await self._say_goodbye(session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ---- how

    @property
    def _current(self) -> Session:
        if self._session is None:
            raise ClientError("the worker is not connected", hint="await worker.start()")
        return self._session

    async def _ready(self) -> Session:
        """The session, a new one if it was evicted."""
        session = self._session
        if session is not None and session.eviction is None and not self._closed:
            return session
        async with self._connecting:
            if self._closed:
                raise ClientError("the worker is closed", hint="connect again")
            session = self._session
            if session is not None and session.eviction is None:
                return session
            if session is not None:
                log.warning(
                    "%s is no consumer of %s any more (%s): connecting again; what it had is "
                    "delivered again",
                    session.consumer,
                    self.group,
                    session.eviction.text if session.eviction else "",
                )
                await session.close()
            connected = await self._caller.ask(
                CONNECT, self._request, doing=f"connect to {self.group}"
            )
            self._session = Session(self._caller, self.group, connected, give_back=self._give_back)
            return self._session

    def _check_outage(self, session: Session) -> None:
        seconds = time.monotonic() - session.poller.answered_at
        if seconds > self._caller.seconds_max and (silent := session.poller.outage()):
            raise retries_exhausted_error(silent, f"poll for {self.group}", round(seconds, 1))

    async def _settle(
        self, batch: Sequence[DeliveredMessage], what: Nack | Extend
    ) -> list[SettleResult]:
        async def settle(consumer: str, tokens: list[bytes]) -> list[SettleResult]:
            return await self._settler.settle(self.group, consumer, tokens, what)

        return await self._by_consumer(batch, settle)

    async def _by_consumer(
        self,
        batch: Sequence[DeliveredMessage],
        settle: Callable[[str, list[bytes]], Awaitable[list[SettleResult]]],
    ) -> list[SettleResult]:
        """Each message in the name that it was delivered to: ours may be another by now."""
        names = {message.consumer for message in batch}
        if len(names) == 1:
            return await settle(names.pop(), [message.token for message in batch])
        verdicts: dict[int, SettleResult] = {}
        for name in names:
            places = [at for at, message in enumerate(batch) if message.consumer == name]
            found = await settle(name, [batch[place].token for place in places])
            verdicts.update(zip(places, found, strict=True))
        return [verdicts[place] for place in range(len(batch))]

    def _settled(
        self, batch: Sequence[DeliveredMessage], verdicts: Sequence[SettleResult]
    ) -> list[RefusedMessage]:
        if self._session is not None:
            self._session.settled(batch)
        refused = _refused(batch, verdicts)
        lost = {id(each.message) for each in refused}
        for message in batch:
            message._is_settled |= id(message) not in lost
        return refused

    async def _give_back(self, consumer: str, tokens: list[bytes]) -> None:
        what = Nack(0, "it was polled, but not fetched")
        await self._settler.settle(
            self.group, consumer, tokens, what, seconds_max=_GIVE_BACK_SECONDS_MAX
        )

    async def _say_goodbye(self, session: Session) -> None:
        request = pb.DisconnectRequest(group=self.group, consumer_id=session.consumer)
        try:
            await self._caller.call(DISCONNECT, request, seconds_max=_GOODBYE_SECONDS_MAX)
        except CallFailed as failed:
            # Its silence says the same, a little later.
            log.info("could not leave %s: %s", self.group, failed)


def _listed(messages: Messages) -> list[DeliveredMessage]:
    if isinstance(messages, DeliveredMessage):
        return [messages]
    listed = list(messages) if isinstance(messages, Iterable) else [messages]
    for each in listed:
        if not isinstance(each, DeliveredMessage):
            raise InvalidArgumentError(
                f"{each!r} is no message of a queue", hint="give one that poll returned, or a list"
            )
    return listed


def _refused(
    batch: Sequence[DeliveredMessage], verdicts: Sequence[SettleResult]
) -> list[RefusedMessage]:
    return [
        RefusedMessage(message, verdict.name, verdict.message)
        for message, verdict in zip(batch, verdicts, strict=True)
        if verdict is not DONE and not verdict.is_done
    ]


def _raise(refused: list[RefusedMessage]) -> None:
    for each in refused:
        raise each.error()
