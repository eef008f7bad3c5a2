"""AsyncWorker: a consumer of a queue group that survives broker failures and evictions."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, Self

from moldau.client.errors import ClientError, InvalidArgumentError, LeaseLostError
from moldau.client.queue.ack_batcher import AckBatcher
from moldau.client.queue.batch_size import BatchSizer
from moldau.client.queue.channels import CONNECT, DISCONNECT
from moldau.client.queue.message import DeliveredMessage
from moldau.client.queue.outgoing import milliseconds
from moldau.client.queue.rpc import CallFailed, RpcClient
from moldau.client.queue.rpc_failures import error_for, retries_exhausted_error
from moldau.client.queue.session import Session
from moldau.client.queue.settler import DONE, Extend, Nack, Settler, SettleResult
from moldau.model.queue_limits import POLL_MESSAGES_MAX
from moldau.proto.v1 import queue_pb2 as pb

log = logging.getLogger(__name__)

POLL_MESSAGES: Final = 100
POLL_WAIT_SECONDS: Final = 1.0
_LEAVE_SECONDS_MAX: Final = 3.0
_GIVE_BACK_SECONDS_MAX: Final = 5.0
_NOT_REACHED: Final = frozenset({"UNAVAILABLE", "NOT_LEADER", "BUSY", "TIMED_OUT"})
_LOST_HINT: Final = "it is redelivered: use extend, or a longer visibility"
_HINTS: Final = {
    "SETTLED": "it was already settled",
    "UNKNOWN_CONSUMER": "its worker was closed or evicted: its messages are redelivered",
    "OTHER_GROUP": "settle it with the worker that polled it",
    "BAD_TOKEN": "settle messages that poll returned, with the worker that polled them",
}

Messages = DeliveredMessage | Iterable[DeliveredMessage]


class RefusedMessage(NamedTuple):
    """A message that could not be settled; `reason` is the API's name for why."""

    message: DeliveredMessage
    reason: str
    text: str

    def error(self) -> ClientError:
        """LeaseLostError, or UnavailableError if no broker could be reached."""
        what = f"cannot settle {self.message!r}: {self.text or self.reason}"
        if self.reason in _NOT_REACHED or self.reason == "INVALID_ARGUMENT":
            return error_for(self.reason, what)
        return LeaseLostError(what, self.reason, hint=_HINTS.get(self.reason, _LOST_HINT))


class AsyncQueueMessage(DeliveredMessage):
    """A message of an AsyncWorker."""

    __slots__ = ("_worker",)

    def __init__(self, raw: pb.Message, consumer: str, worker: "AsyncWorker") -> None:
        super().__init__(raw, consumer)
        self._worker = worker

    async def ack(self) -> None:
        """Mark it as done. Raises LeaseLostError if its lease was lost."""
        raise_refused(await self._worker.ack(self))

    async def nack(self, *, delay: float | None = None, reason: str = "") -> None:
        """Redeliver it, after `delay` seconds or the group's backoff."""
        raise_refused(await self._worker.nack(self, delay=delay, reason=reason))

    async def extend(self, seconds: float) -> None:
        """Extend its lease to `seconds` from now."""
        raise_refused(await self._worker.extend(self, seconds))


class AsyncWorker:
    """A consumer of a group. For any number of tasks of one loop."""

    def __init__(self, rpc: RpcClient, settler: Settler, request: pb.ConnectRequest) -> None:
        self._rpc = rpc
        self._settler = settler
        self._request = request
        self._acks = AckBatcher(settler, request.group)
        self._connecting = asyncio.Lock()
        self._session: Session | None = None
        self._closed = False

    async def start(self) -> Self:
        """Join the group. Raises ClientError."""
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
        """The consumer id in the group; another one after an eviction."""
        return self._current.consumer

    @property
    def mode(self) -> str:
        return "ordered" if self._current.is_ordered else "queue"

    @property
    def visibility(self) -> float:
        """The default lease of a message in seconds."""
        return self._current.settings.visibility_ms / 1000

    @property
    def dead_letter_topic(self) -> str:
        """The topic for messages after their last attempt; empty in ordered groups."""
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

        An outage shorter than the client's timeout looks like an empty queue; after that it raises
        UnreachableError or UnavailableError.
        """
        consumer, raws = await self.poll_raw(max_messages, wait, visibility)
        return [AsyncQueueMessage(raw, consumer, self) for raw in raws]

    async def poll_raw(
        self, max_messages: int, wait: float, visibility: float | None
    ) -> tuple[str, list[pb.Message]]:
        """The same as messages of the API, and the consumer id of the delivery."""
        if not isinstance(max_messages, int) or not 1 <= max_messages <= POLL_MESSAGES_MAX:
            raise InvalidArgumentError(
                f"max_messages must be 1 to {POLL_MESSAGES_MAX:,}, not {max_messages!r}"
            )
        visibility_ms = 0 if visibility is None else max(1, milliseconds(visibility, "visibility"))
        deadline = time.monotonic() + milliseconds(wait, "wait") / 1000
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
        """Yields messages forever; each must be settled. Polls as many at a time as are done within
        their lease; the rest is given back when the loop ends."""
        sizer = BatchSizer()
        rest: deque[AsyncQueueMessage] = deque()
        try:
            while not self._closed:
                rest.extend(await self.poll(sizer.count))
                sizer.taken(len(rest))
                while rest:
                    yield rest.popleft()
                sizer.done(self.visibility)
        finally:
            await self.give_back(rest)

    async def give_back(self, messages: Collection[DeliveredMessage]) -> None:
        """Return unprocessed messages to the queue. An ordered group redelivers them anyway."""
        if messages and not self._closed and self.mode == "queue":
            await self.nack(messages, delay=0, reason="polled, but not processed")

    async def ack(self, messages: Messages) -> list[RefusedMessage]:
        """Mark messages as done. Returns those that were refused.

        A message that was already acked counts as done. In an ordered group, an ack covers all
        earlier messages of the partition.
        """
        batch = _listed(messages)
        results = await self._by_consumer(batch, self._acks.ack)
        return self._settled(batch, results)

    async def nack(
        self,
        messages: Messages,
        *,
        delay: float | None = None,
        reason: str = "",
    ) -> list[RefusedMessage]:
        """Redeliver failed messages. Returns those that were refused."""
        delay_ms = None if delay is None else milliseconds(delay, "delay")
        batch = _listed(messages)
        results = await self._settle(batch, Nack(delay_ms, reason))
        return self._settled(batch, results)

    async def extend(self, messages: Messages, seconds: float) -> list[RefusedMessage]:
        """Extend the leases to `seconds` from now. Returns those that were refused."""
        batch = _listed(messages)
        what = Extend(max(1, milliseconds(seconds, "seconds")))
        results = await self._settle(batch, what)
        return _refused(batch, results)

    # ---- close

    async def close(self) -> None:
        """Leave the group: unsettled messages are redelivered to others at once."""
        if self._closed:
            return
        self._closed = True
        async with self._connecting:
            session = self._session
            if session is None:
                return
            await session.close()
            if session.eviction is None:
                await self._leave(session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # ---- session

    @property
    def _current(self) -> Session:
        if self._session is None:
            raise ClientError("the worker is not connected", hint="await worker.start()")
        return self._session

    async def _ready(self) -> Session:
        """The session; a new one after an eviction."""
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
                    "consumer %s was evicted from group %s (%s): reconnecting; its messages are "
                    "redelivered",
                    session.consumer,
                    self.group,
                    session.eviction.text if session.eviction else "",
                )
                await session.close()
            connected = await self._rpc.request(
                CONNECT, self._request, doing=f"connect to {self.group}"
            )
            self._session = Session(self._rpc, self.group, connected, give_back=self._give_back)
            return self._session

    def _check_outage(self, session: Session) -> None:
        seconds = time.monotonic() - session.poller.responded_at
        if seconds > self._rpc.seconds_max and (failures := session.poller.outage()):
            raise retries_exhausted_error(failures, f"poll for {self.group}", round(seconds, 1))

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
        """Settle each message under the consumer id of its delivery, which may be an older one."""
        names = {message.consumer for message in batch}
        if len(names) == 1:
            return await settle(names.pop(), [message.token for message in batch])
        results: dict[int, SettleResult] = {}
        for name in names:
            indexes = [at for at, message in enumerate(batch) if message.consumer == name]
            found = await settle(name, [batch[index].token for index in indexes])
            results.update(zip(indexes, found, strict=True))
        return [results[index] for index in range(len(batch))]

    def _settled(
        self, batch: Sequence[DeliveredMessage], results: Sequence[SettleResult]
    ) -> list[RefusedMessage]:
        if self._session is not None:
            self._session.settled(batch)
        refused = _refused(batch, results)
        lost = {id(each.message) for each in refused}
        for message in batch:
            message._is_settled |= id(message) not in lost
        return refused

    async def _give_back(self, consumer: str, tokens: list[bytes]) -> None:
        what = Nack(0, "polled, but not fetched")
        await self._settler.settle(
            self.group, consumer, tokens, what, seconds_max=_GIVE_BACK_SECONDS_MAX
        )

    async def _leave(self, session: Session) -> None:
        request = pb.DisconnectRequest(group=self.group, consumer_id=session.consumer)
        try:
            await self._rpc.call(DISCONNECT, request, seconds_max=_LEAVE_SECONDS_MAX)
        except CallFailed as failed:
            # The group evicts it when its session times out.
            log.info("could not leave group %s: %s; its session will time out", self.group, failed)


def _listed(messages: Messages) -> list[DeliveredMessage]:
    if isinstance(messages, DeliveredMessage):
        return [messages]
    listed = list(messages) if isinstance(messages, Iterable) else [messages]
    for each in listed:
        if not isinstance(each, DeliveredMessage):
            raise InvalidArgumentError(
                f"{each!r} is not a queue message", hint="pass messages that poll returned"
            )
    return listed


def _refused(
    batch: Sequence[DeliveredMessage], results: Sequence[SettleResult]
) -> list[RefusedMessage]:
    return [
        RefusedMessage(message, result.name, result.message)
        for message, result in zip(batch, results, strict=True)
        if result is not DONE and not result.is_done
    ]


def raise_refused(refused: list[RefusedMessage]) -> None:
    for each in refused:
        raise each.error()
