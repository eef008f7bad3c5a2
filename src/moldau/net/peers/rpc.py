"""RPCs between brokers: request id, method, payload; a reply or an error.

For infrequent requests: forwarded commands, announcements, markers. A request is sent over the link
to the peer, the reply comes over the peer's own link. Both sides limit open requests: the caller
those it waits for, the peer those it handles. Methods for operators have limits of their own, so
that they cannot displace those that the cluster lives on.
"""

import asyncio
import logging
import struct
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.model import log_events as events
from moldau.model.errors import ErrorCode, PeerProtocolError, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.slices import Chunk
from moldau.net.peers.frames import FrameKind
from moldau.net.peers.methods import FOR_OPERATORS

log = logging.getLogger(__name__)

PAYLOAD_BYTES_MAX: Final = 8 * 1024 * 1024
_OPEN_MAX = 1024
_OPEN_FOR_OPERATORS_MAX: Final = 512
"""A request for operators is refused above it; the others go up to `_OPEN_MAX`."""
_WORKING_PER_PEER_MAX = 64
"""Of the methods for operators, and as many of the others."""
_REQUEST: Final = struct.Struct(">QH")
_REPLY: Final = struct.Struct(">Q")
_FAILURE: Final = struct.Struct(">Qh")
_MESSAGE_BYTES_MAX: Final = 1024

RequestHandler = Callable[[BrokerId, bytes], Awaitable[bytes]]
"""Handles one method; a RefusedError is returned to the caller with its code."""
FrameSender = Callable[[BrokerId, FrameKind, list[Chunk]], bool]
_Limit = tuple[BrokerId, bool]
"""Of a peer; whether of its requests for operators, or of the others."""


class NotSentError(RefusedError):
    """The request was never sent: the peer has done nothing, so a retry is safe."""


class PeerRpc:
    """RPCs sent and handled by one broker."""

    def __init__(self, *, loop: AbstractEventLoop, send: FrameSender, first_id: int) -> None:
        """`first_id`: random. A reply to the previous process of this broker may arrive late, and
        must not be taken for that to a request of this one."""
        self._loop = loop
        self._send = send
        self._methods: dict[int, RequestHandler] = {}
        self._next_id = first_id
        self._open: dict[int, tuple[BrokerId, asyncio.Future[bytes]]] = {}
        self._limit_themselves: set[int] = set()
        self._working: dict[asyncio.Task[None], _Limit | None] = {}
        """With the limit that they count towards."""

    def serve(self, method: int, handler: RequestHandler, *, limits_itself: bool = False) -> None:
        """`limits_itself`: its requests may wait for long, and take no place of others."""
        self._methods[method] = handler
        if limits_itself:
            self._limit_themselves.add(method)

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        """Raises RefusedError: the peer's own, or NETWORK_EXCEPTION, REQUEST_TIMED_OUT.

        A NotSentError if the peer cannot have received it.
        """
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"peer request of {len(payload)} bytes (limit {PAYLOAD_BYTES_MAX})",
            )
        most = _OPEN_FOR_OPERATORS_MAX if method in FOR_OPERATORS else _OPEN_MAX
        if len(self._open) >= most:
            raise NotSentError(
                ErrorCode.NETWORK_EXCEPTION, f"limit of {most} open peer requests reached"
            )
        request_id = self._next_id
        self._next_id += 1
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._open[request_id] = (peer, future)
        try:
            if not self._send(
                peer, FrameKind.REQUEST, [_REQUEST.pack(request_id, method), payload]
            ):
                raise NotSentError(ErrorCode.NETWORK_EXCEPTION, f"not connected to broker {peer}")
            async with asyncio.timeout(timeout_seconds):
                return await future
        except TimeoutError:
            raise RefusedError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"request to broker {peer} timed out after {timeout_seconds:g} s",
            ) from None
        finally:
            del self._open[request_id]

    def on_frame(self, sender: BrokerId, kind: FrameKind, body: memoryview) -> None:
        """Raises PeerProtocolError."""
        try:
            if kind is FrameKind.REQUEST:
                request_id, method = _REQUEST.unpack_from(body)
                self._on_request(sender, request_id, method, body[_REQUEST.size :])
            elif kind is FrameKind.REPLY:
                (request_id,) = _REPLY.unpack_from(body)
                self._settle(sender, request_id, bytes(body[_REPLY.size :]))
            else:
                request_id, code = _FAILURE.unpack_from(body)
                message = bytes(body[_FAILURE.size :]).decode(errors="replace")
                self._settle(sender, request_id, RefusedError(_code(code), message))
        except struct.error:
            raise PeerProtocolError(f"frame of kind {kind} with {len(body)} bytes") from None

    def _settle(self, sender: BrokerId, request_id: int, result: bytes | RefusedError) -> None:
        peer, future = self._open.get(request_id, (None, None))
        if future is None or peer != sender or future.done():
            # The caller no longer waits.
            return
        if isinstance(result, bytes):
            future.set_result(result)
        else:
            future.set_exception(result)

    def _on_request(self, sender: BrokerId, request_id: int, method: int, body: memoryview) -> None:
        if len(body) > PAYLOAD_BYTES_MAX:
            raise PeerProtocolError(
                f"peer request of {len(body)} bytes (limit {PAYLOAD_BYTES_MAX})"
            )
        handler = self._methods.get(method)
        if handler is None:
            error = RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"unknown peer method {method}")
            self._fail(sender, request_id, error)
            return
        limit = None
        if method not in self._limit_themselves:
            limit = (sender, method in FOR_OPERATORS)
        if limit is not None and self._is_full(limit):
            error = RefusedError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"limit of {_WORKING_PER_PEER_MAX} concurrent peer requests reached",
            )
            self._fail(sender, request_id, error)
            return
        task = self._loop.create_task(self._handle(sender, request_id, handler, bytes(body)))
        self._working[task] = limit
        task.add_done_callback(self._forget)

    def _is_full(self, limit: _Limit) -> bool:
        return sum(each == limit for each in self._working.values()) >= _WORKING_PER_PEER_MAX

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._working[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "internal error while handling a peer request",
                exc_info=error,
                extra=events.INTERNAL_ERROR(),
            )

    async def _handle(
        self, sender: BrokerId, request_id: int, handler: RequestHandler, payload: bytes
    ) -> None:
        try:
            reply = await handler(sender, payload)
        except RefusedError as error:
            self._fail(sender, request_id, error)
            return
        if len(reply) > PAYLOAD_BYTES_MAX:
            refusal = RefusedError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"peer reply of {len(reply)} bytes (limit {PAYLOAD_BYTES_MAX})",
            )
            self._fail(sender, request_id, refusal)
            return
        self._send(sender, FrameKind.REPLY, [_REPLY.pack(request_id), reply])

    def _fail(self, sender: BrokerId, request_id: int, error: RefusedError) -> None:
        text = error.message.encode()[:_MESSAGE_BYTES_MAX]
        self._send(sender, FrameKind.FAILURE, [_FAILURE.pack(request_id, error.code), text])

    def peer_lost(self, peer: BrokerId) -> None:
        """Fail all requests that wait for the peer's reply."""
        for target, future in list(self._open.values()):
            if target == peer and not future.done():
                future.set_exception(
                    RefusedError(ErrorCode.NETWORK_EXCEPTION, f"link to broker {peer} lost")
                )

    def stop(self) -> None:
        for task in list(self._working):
            task.cancel()
        for peer in {peer for peer, _ in self._open.values()}:
            self.peer_lost(peer)


def _code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
