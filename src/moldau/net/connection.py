"""One client connection: its socket, framing, order of replies, and backpressure.

It uses the socket directly instead of an asyncio transport, for two measured reasons: `recv_into` a
reused buffer is several times faster than streams, and transports do not allow `sendfile`. Rules:

- A frame is a view of a reused buffer, valid only until `on_frame` returns.
- Replies are sent in the order of their requests. A handler calls exactly one of `reply`,
  `no_reply` or `defer` per frame.
- A handler sets `overlaps` to the kind of frames that may be handled while its reply is pending;
  other frames wait for that reply, and see its effects.
- `mute` stops reading for as long as a function says; replies are still sent.
- Reading pauses while too much is pending or unsent, per connection and over all connections
  (ByteBudget). So a slow client slows down only itself; and one that sends requests without pause
  is handled for a few milliseconds before the others get their turn.
"""

import logging
import socket
import struct
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.compiled import mypyc_attr
from moldau.model.errors import PeerProtocolError
from moldau.model.histogram import SHORTEST, Histogram
from moldau.model.slices import Chunk, FileSlice
from moldau.net.budget import Account, ByteBudget
from moldau.net.buffers import SCRATCH_BYTES, BufferPool
from moldau.net.failure_log import FailureLog
from moldau.net.limits import ConnectionLimits
from moldau.net.networks import network_of
from moldau.net.partial_frame import LENGTH_BYTES, QUIET_SECONDS_MAX, PartialFrame
from moldau.net.replies import DeferredReply
from moldau.net.socket_writer import SocketWriter
from moldau.net.tls.contexts import PeerCertificate
from moldau.net.traffic import Traffic

log = logging.getLogger(__name__)

_KIND_BYTES: Final = 2
_unpack_length: Final = struct.Struct(">i").unpack_from
_unpack_kind: Final = struct.Struct(">h").unpack_from
ALL_OVERLAP: Final = -1
NONE_OVERLAP: Final = -2
_TLS_LENGTHS: Final = range(0x16030000, 0x16030500)
"""The first bytes of a TLS handshake, read as the length of a request."""
_TURN_SECONDS_MAX: Final = 0.005
"""Frames of one connection are handled for this long before it yields to the others."""
_MUTE_SECONDS_MIN: Final = 0.001
_MUTE_SECONDS_MAX: Final = 1.0


def _event(level: int) -> dict[str, object] | None:
    """What the log calls that a connection ended; nothing unless it is a bug."""
    return events.INTERNAL_ERROR() if level >= logging.ERROR else None


class FrameHandler(Protocol):
    """Handles the frames of connections."""

    def on_frame(self, connection: "Connection", frame: memoryview) -> None: ...

    def on_closed(self, connection: "Connection") -> None: ...


class _TlsWithoutTlsError(PeerProtocolError):
    """A client speaks TLS to a listener without it."""

    def __init__(self) -> None:
        super().__init__(
            "the client uses TLS, but this listener does not; set the client's security.protocol "
            "to PLAINTEXT or SASL_PLAINTEXT, or connect to a listener with TLS"
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection(SocketWriter):
    """One accepted socket."""

    __slots__ = (
        "_clock",
        "_draining",
        "_failures",
        "_flush_scheduled",
        "_frame_bytes",
        "_handler",
        "_has_room",
        "_inflight_bytes",
        "_limits",
        "_on_close",
        "_on_login",
        "_parsing",
        "_partial",
        "_paused",
        "_pool",
        "_queue_seconds",
        "_received_at",
        "_replies",
        "_unmuting",
        "_waits_for_budget",
        "_waits_for_replies",
        "account",
        "active_at",
        "address",
        "is_closed",
        "listener",
        "on_next",
        "overlaps",
        "peer_certificate",
        "state",
        "traffic",
    )

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        sock: socket.socket,
        address: str,
        handler: FrameHandler,
        limits: ConnectionLimits,
        pool: BufferPool,
        budget: ByteBudget,
        clock: Clock,
        on_close: Callable[["Connection"], None],
        on_login: Callable[["Connection"], object],
        failures: FailureLog | None = None,
        listener: object = None,
        queue_seconds: Histogram | None = None,
    ) -> None:
        """`queue_seconds`: how long frames wait for the handler, from the read of their end."""
        super().__init__(loop, sock)
        self._failures = failures or FailureLog(clock)
        self.listener = listener
        """What the server says about the listener; for the handler."""
        self.peer_certificate: PeerCertificate | None = None
        """Of the client, if TLS required one."""
        self._handler = handler
        self._limits = limits
        self._pool = pool
        self.account = Account(budget, network_of(address.rpartition(":")[0]))
        self._clock = clock
        self._on_close = on_close
        self._on_login = on_login
        self.address = address
        self.is_closed = False
        self.state: object | None = None
        """For the handler's own use, e.g. an authenticated principal."""
        self.on_next: Callable[[int], None] | None = None
        """Set by the handler: called with the kind of a frame that waits for earlier replies."""
        self.overlaps = ALL_OVERLAP
        """Set by the handler: the kind of frames that need not wait for earlier replies. The kind
        is the first two bytes of a frame."""
        self.active_at = clock.monotonic()
        self._received_at = self.active_at
        self.traffic = Traffic(self.active_at)
        self._queue_seconds = queue_seconds
        self._partial = PartialFrame(self.account, pool)
        self._frame_bytes = 0
        self._has_room = True
        self._replies: deque[DeferredReply] = deque()
        self._inflight_bytes = 0
        self._paused = False
        self._parsing = False
        self._waits_for_budget = False
        self._waits_for_replies = False
        self._flush_scheduled = False
        self._draining = False
        self._unmuting: TimerHandle | None = None
        """The end of the current mute."""
        loop.add_reader(sock, self._on_readable)

    # ---- reading

    def _on_readable(self) -> None:
        if not self._make_room():
            return
        partial = self._partial
        buffer = partial.buffer
        try:
            if buffer is None:
                size = min(SCRATCH_BYTES, self.account.budget.eager_bytes)
                received = self._socket.recv_into(self._pool.scratch, size)
            else:
                received = self._socket.recv_into(memoryview(buffer)[partial.filled :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"receive failed: {error.strerror}")
            return
        if received == 0:
            self.close("closed by client")
            return
        self.active_at = self._received_at = self._clock.monotonic()
        self.traffic.bytes_in += received
        if buffer is None:
            self._consume(self._pool.scratch_view, 0, received)
        else:
            partial.filled += received
            self._consume(memoryview(buffer), partial.position, partial.filled)

    def _consume(self, view: memoryview, position: int, end: int) -> None:
        """Handle the whole frames in view[position:end]; keep the rest for later."""
        self._parsing = True
        finished = False
        try:
            position = self._handle_frames(view, position, end)
            finished = True
        except _TlsWithoutTlsError as tls:
            self.refuse(str(tls))
            return
        except PeerProtocolError as error:
            # Replies to earlier requests that are ready are still sent.
            if not self._writing:
                self._write()
            if self._limits.logs_protocol_errors:
                self.refuse(f"protocol error: {error}")
            else:
                self.close(f"protocol error: {error}")
            return
        finally:
            self._parsing = False
            if not finished and not self.is_closed:
                # The handler raised: the order of replies is lost, so the connection must close.
                self.close("internal error while handling a request", level=logging.ERROR)
        if self.is_closed:
            return
        if position < end and self._is_muted_and_memory_short:
            self._close_muted()
            return
        now, is_muted = self._clock.monotonic(), self._unmuting is not None
        self._partial.keep(view, position, end, now=now, is_muted=is_muted)
        if self._unmuting is not None:
            self._count_muted()
        self._flush()

    def _handle_frames(self, view: memoryview, position: int, end: int) -> int:
        limits, account, replies = self._limits, self.account, self._replies
        request_bytes_max = limits.request_bytes_max
        inflight_requests_max = limits.inflight_requests_max
        inflight_bytes_max = limits.inflight_bytes_max
        outgoing_bytes_max = limits.outgoing_bytes_max
        on_frame = self._handler.on_frame
        monotonic = self._clock.monotonic
        began = monotonic()
        turn_ends = began + _TURN_SECONDS_MAX
        handled = 0
        while end - position >= LENGTH_BYTES:
            size: int = _unpack_length(view, position)[0]
            if not 0 < size <= request_bytes_max:
                if size in _TLS_LENGTHS:
                    raise _TlsWithoutTlsError
                raise PeerProtocolError(f"request of {size} bytes (limit {request_bytes_max})")
            frame_end = position + LENGTH_BYTES + size
            if frame_end > end or self._paused:
                break
            if replies and self.overlaps != ALL_OVERLAP and size >= _KIND_BYTES:
                kind: int = _unpack_kind(view, position + LENGTH_BYTES)[0]
                if kind != self.overlaps and self._must_wait(kind):
                    break
            self._frame_bytes = size
            on_frame(self, view[position + LENGTH_BYTES : frame_end])
            position = frame_end
            handled += 1
            if self.is_closed:
                break
            if (
                len(replies) >= inflight_requests_max
                or self._inflight_bytes >= inflight_bytes_max
                or self._out_bytes >= outgoing_bytes_max
                or account.is_full
                or (position < end and monotonic() >= turn_ends)
            ):
                self._pause()
        self.traffic.requests += handled
        if handled and self._queue_seconds is not None:
            waited = began - self._received_at
            if handled > 1:
                # The mean of all, as if each took equally long: one clock call for all of them.
                waited += (monotonic() - began) * (handled - 1) / (2 * handled)
            if waited <= SHORTEST:
                # Nearly always. Without a call: it is one of the costs of a small request.
                self._queue_seconds.counts[0] += handled
                self._queue_seconds.sum += waited * handled
            else:
                self._queue_seconds.add(waited, handled)
        return position

    def _must_wait(self, kind: int) -> bool:
        """Whether the frame waits for earlier replies; `on_next` may complete them."""
        if self.on_next is not None:
            self.on_next(kind)
        if self._replies:
            self._waits_for_replies = True
            self._pause()
        return self._waits_for_replies

    def _make_room(self) -> bool:
        """For what is read next; False if the frame has to wait for that."""
        if self._partial.make_room():
            return True
        self._has_room = False
        self._pause()
        return False

    # ---- backpressure

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._loop.remove_reader(self._socket)
        if not self._waits_for_budget:
            self._waits_for_budget = self.account.wait(self._budget_freed)

    def _budget_freed(self) -> None:
        self._waits_for_budget = False
        self._loop.call_soon(self._maybe_resume)

    def mute(self, seconds: Callable[[], float]) -> None:
        """Read nothing while `seconds` says how long; it is called again, as it may change."""
        if self._unmuting is None and not self.is_closed and not self._draining:
            self._mute_on(seconds)
            if not self._parsing:
                # Otherwise when it is known what is left to keep.
                self._count_muted()

    def _mute_on(self, seconds: Callable[[], float]) -> None:
        left = seconds()
        if left > 0:
            # Not too short either: some time must pass.
            step = max(_MUTE_SECONDS_MIN, min(left, _MUTE_SECONDS_MAX))
            self._unmuting = self._loop.call_later(step, self._mute_on, seconds)
            self.account.yield_turn()
            self.traffic.mute(self._clock.monotonic())
            self._pause()
        elif self._unmuting is not None:
            self._unmute()

    @property
    def _is_muted_and_memory_short(self) -> bool:
        """What muted connections keep may fill half of the budget: the rest is for others."""
        return self._unmuting is not None and self.account.budget.is_muted_full

    @property
    def _kept_bytes(self) -> int:
        """Received and not handled."""
        return len(self._partial.buffer or b"")

    def _count_muted(self) -> None:
        self.account.mute(self._kept_bytes if self._unmuting is not None else 0)

    def _close_muted(self) -> bool:
        """Whether it is closed now: replies are still sent, also those that other brokers have to
        confirm first."""
        reason = "muted, with unread requests that would take too much memory"
        log.debug("connection from %s closes: %s", self.address, reason)
        self._end_mute()
        self._partial.drop()
        if not self._writing:
            self._write()
        self.drain()
        return self.is_closed

    def _end_mute(self) -> None:
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None
            self.traffic.unmute(self._clock.monotonic())
            self._count_muted()

    def _unmute(self) -> None:
        self._end_mute()
        # The idle time of the client starts now: it could not be heard.
        self.active_at = self._clock.monotonic()
        self._maybe_resume()

    def _maybe_resume(self) -> None:
        if self.is_closed or not self._paused or self._parsing or self._draining:
            return
        if self._unmuting is not None:
            return
        limits = self._limits
        if self._waits_for_replies and self._replies:
            return
        if (
            len(self._replies) > limits.inflight_requests_max // 2
            or self._inflight_bytes > limits.inflight_bytes_max // 2
            or self._out_bytes > limits.outgoing_bytes_max // 2
        ):
            return
        if not self._may_read_on():
            self._pause()
            return
        if self._has_room:
            # What was paused for other reasons than its size is not slow.
            self._partial.began_at = self._clock.monotonic()
        self._has_room = True
        self._paused = self._waits_for_replies = False
        self._loop.add_reader(self._socket, self._on_readable)
        partial = self._partial
        if partial.buffer is not None:
            self._consume(memoryview(partial.buffer), partial.position, partial.filled)

    def _may_read_on(self) -> bool:
        if self._partial.buffer is not None and self._partial.is_incomplete:
            return self._has_room or self.account.has_turn()
        # One frame at a time is always handled, or connections could deadlock.
        return self.is_idle or not self.account.is_full

    # ---- replying

    def reply(self, chunks: Sequence[Chunk]) -> None:
        """Reply to the current frame now."""
        if self._replies:
            later = self._hold(
                sum(len(chunk) for chunk in chunks if not isinstance(chunk, FileSlice))
            )
            later.chunks = chunks
        else:
            self._enqueue(chunks)

    def no_reply(self) -> None:
        """The current frame gets no reply (Produce with acks=0)."""

    def defer(self) -> DeferredReply:
        """The current frame gets its reply later."""
        return self._hold(self._frame_bytes)

    def _hold(self, size: int) -> DeferredReply:
        """Reserve a position in the order of replies; counts as `size` bytes in flight."""
        reply = DeferredReply(self, size)
        self._replies.append(reply)
        self._inflight_bytes += size
        self.account.acquire(size)
        return reply

    def reply_completed(self) -> None:
        """A deferred reply is ready: send all replies up to the first pending one."""
        replies = self._replies
        if self.is_closed or not replies or replies[0].chunks is None:
            return
        # The idle time of the client starts now, not when its request arrived.
        self.active_at = self._clock.monotonic()
        while replies and (chunks := replies[0].chunks) is not None:
            reply = replies.popleft()
            self._enqueue(chunks)
            self._inflight_bytes -= reply.held_bytes
            self.account.release(reply.held_bytes)
        if not self._parsing and not self._flush_scheduled:
            # Many replies become ready in one loop turn; they are sent together.
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled_now)

    def _flush_scheduled_now(self) -> None:
        self._flush_scheduled = False
        if not self.is_closed:
            self._flush()

    # ---- writing

    def _flush(self) -> None:
        if self._out and not self._writing:
            self._write()
        self._after_write()

    def _on_writable(self) -> None:
        self.active_at = self._clock.monotonic()
        self._write()
        self._after_write()

    def _after_write(self) -> None:
        if self.is_closed:
            return
        if self._draining:
            if self.is_idle:
                self.close("drained")
        elif self._paused:
            # Scheduled, not called: it handles waiting frames, which ends here again.
            self._loop.call_soon(self._maybe_resume)

    # ---- closing

    def fileno(self) -> int:
        return self._socket.fileno()

    def await_login(self) -> None:
        """The client is unknown, and gets little memory, until `set_user`."""
        self.account.await_login()

    def set_user(self, user: str) -> None:
        """Whose connection it is."""
        if not self.is_closed:
            self.account.log_in(user)
            self._on_login(self)

    def set_limits(self, limits: ConnectionLimits) -> None:
        """Change the limits from the next frame on, e.g. after a handshake."""
        self._limits = limits

    @property
    def is_idle(self) -> bool:
        return not self._replies and not self._out

    @property
    def awaits_client(self) -> bool:
        """Whether the client has to act: send a request, or read replies."""
        return self._unmuting is None and (not self._replies or bool(self._out))

    def is_slow(self, now: float) -> bool:
        """Whether a frame takes too long to arrive. Time in which it waits for memory counts, or
        such frames could fill the memory forever."""
        partial = self._partial
        if partial.buffer is None or not partial.is_incomplete or self._unmuting is not None:
            return False
        if self._paused and self._has_room:
            return False
        seconds = 0.0 if self._paused else now - self.active_at
        return seconds > QUIET_SECONDS_MAX or partial.is_slow(now)

    def drain(self) -> None:
        """Stop reading; close once all pending replies are sent."""
        if self.is_closed or self._draining:
            return
        self._draining = True
        self.account.yield_turn()
        if not self._paused:
            self._paused = True
            self._loop.remove_reader(self._socket)
        if self.is_idle:
            self.close("drained")

    def refuse(self, reason: str) -> None:
        """Close it because of what the client does, and log that once in a while."""
        self._failures.warn(self.address, reason)
        self.close(reason)

    def close(self, reason: str, level: int = logging.DEBUG) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        log.log(level, "connection from %s closed: %s", self.address, reason, extra=_event(level))
        if not self._paused:
            self._loop.remove_reader(self._socket)
        self._end_mute()
        super().close(reason, level)
        self._partial.drop()
        replies, self._replies = self._replies, deque()
        self.account.close()
        for reply in replies:
            if reply.on_abandoned is not None:
                reply.on_abandoned()
        self._handler.on_closed(self)
        self._on_close(self)
