"""One blocking connection to one broker; responses arrive in the order of the requests."""

import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Self, TypeVar

from moldau.client.errors import (
    KAFKA_PORT_HINT,
    START_HINT,
    ClientError,
    RejectedError,
    TimedOutError,
    UnreachableError,
)
from moldau.client.protocols import Protocol, mismatch
from moldau.client.retry import CONNECT_SECONDS_MAX, connect_failure
from moldau.client.sasl import Sasl
from moldau.client.security import PLAIN_TEXT, PROTOCOL, Security, Tls, tls_context
from moldau.model.errors import ErrorCode, PeerProtocolError
from moldau.model.slices import Chunk, FileSlice
from moldau.version import __version__
from moldau.wire.fields import Versions
from moldau.wire.framing import LENGTH_BYTES, frame_request, read_response_header
from moldau.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from moldau.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.wire.registry import APIS, RESPONSES, ApiKey
from moldau.wire.schema import Request, Response

RESPONSE_BYTES_MAX = 512 * 1024 * 1024
"""The largest response accepted; checked before memory is allocated."""

_TLS_ALERT: Final = b"\x15\x03"
"""How the response of a TLS listener begins."""
_HTTP: Final = b"HTTP"
_SASL_FRAMED: Final = 1
"""From this version of SaslHandshake on, SASL messages are sent as Kafka requests."""
_SESSION_PART: Final = 0.9
"""Share of the session lifetime after which the connection is replaced."""

R = TypeVar("R", bound=Response)


class PendingReply(NamedTuple):
    """A request in flight, and how to decode its response."""

    api_key: int
    version: int
    correlation_id: int


class KafkaConnection:
    """A socket to a broker that exchanges messages of `moldau.wire`.

    `send` sends a request and waits for the response. `post` and `receive` are its two halves, so
    that several requests can be in flight. After a socket or protocol error the connection is
    closed and cannot be used again. Not thread-safe.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str | None = "moldau",
        timeout: float = 30.0,
        security: Security = PLAIN_TEXT,
    ) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self.timeout_seconds = timeout
        self._served: dict[int, Versions] | None = None
        self._pending: deque[PendingReply] = deque()
        self._correlation_id = 0
        self._security = security
        self._expires_at: float | None = None
        self._socket: socket.socket | None = self._connect()
        if security.sasl is not None:
            try:
                self._log_in(security.sasl)
            except BaseException:
                self.close()
                raise

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def closed(self) -> bool:
        return self._socket is None

    @property
    def is_expired(self) -> bool:
        """Whether the SASL session is about to expire and no request is in flight.

        Brokers close the connection when it expires.
        """
        expires_at = self._expires_at
        return expires_at is not None and time.monotonic() >= expires_at and not self._pending

    @property
    def pending_count(self) -> int:
        """Requests in flight."""
        return len(self._pending)

    def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- versions

    def served_versions(self) -> dict[int, Versions]:
        """The versions that the broker supports, by API key; fetched once."""
        if self._served is None:
            response = self._fetch_versions()
            self._served = {
                api.api_key: Versions(api.min_version, api.max_version) for api in response.api_keys
            }
        return self._served

    def version_for(self, message: Request | type[Request]) -> int:
        """The highest version that both sides support. Raises ClientError if there is none."""
        key, ours = message.API_KEY, message.VERSIONS
        theirs = self.served_versions().get(key)
        if theirs is None:
            raise ClientError(f"{self.address} does not support {APIS[key].title}")
        version = min(ours.last, theirs.last)
        if version < max(ours.first, theirs.first):
            raise ClientError(
                f"{self.address} supports {APIS[key].title} versions "
                f"{theirs.first} to {theirs.last}, "
                f"this client {ours.first} to {ours.last}"
            )
        return version

    def _fetch_versions(self) -> ApiVersionsResponse:
        if self._pending:
            raise ClientError("responses are outstanding: receive them before requesting versions")
        request = ApiVersionsRequest(
            client_software_name="moldau", client_software_version=__version__
        )
        version = request.VERSIONS.last
        response = self._exchange_versions(request, version)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            served = [api for api in response.api_keys if api.api_key == ApiKey.API_VERSIONS]
            version = min(version, served[0].max_version) if served else 0
            response = self._exchange_versions(request, version)
        if response.error_code:
            raise RejectedError(
                f"{self.address} rejected ApiVersions (error code {response.error_code})",
                response.error_code,
            )
        return response

    def _exchange_versions(self, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        self.post(request, version)
        pending, frame, position = self._receive_frame()
        if frame[position : position + 2] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big"):
            # A broker that does not support the version responds in the oldest one.
            return ApiVersionsResponse.decode(frame, 0, position)
        return ApiVersionsResponse.decode(frame, pending.version, position)

    # -- requests

    def send(self, message: Request, version: int | None = None) -> Response:
        """Send a request and wait for its response; by default in the highest common version."""
        if self._pending:
            raise ClientError("responses are outstanding: use receive() until there are none")
        self.post(message, version)
        return self.receive()

    def request(self, message: Request, response_type: type[R], version: int | None = None) -> R:
        """As `send`, with a typed response."""
        response = self.send(message, version)
        if not isinstance(response, response_type):
            raise TypeError(
                f"the response to {type(message).__name__} is {type(response).__name__}, "
                f"not {response_type.__name__}"
            )
        return response

    def post(self, message: Request, version: int | None = None, *, reply: bool = True) -> int:
        """Send without waiting; the correlation id. `reply=False` if no response comes (acks=0)."""
        if version is None:
            version = self.version_for(message)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        chunks = frame_request(message, version, self._correlation_id, self.client_id)
        self.post_raw(chunks)
        if reply:
            self._pending.append(PendingReply(message.API_KEY, version, self._correlation_id))
        return self._correlation_id

    def post_raw(self, chunks: list[Chunk]) -> None:
        """Send raw bytes; the connection expects no response."""
        opened = self._opened()
        try:
            opened.settimeout(self.timeout_seconds)
            for chunk in chunks:
                if isinstance(chunk, FileSlice):
                    raise TypeError("clients send bytes, not parts of files")
                opened.sendall(chunk)
        except OSError as error:
            raise self._lost(error) from error

    def receive(self) -> Response:
        """Wait for the next response, in the order of the requests."""
        pending, frame, position = self._receive_frame()
        try:
            return RESPONSES[pending.api_key].decode(frame, pending.version, position)
        except PeerProtocolError:
            self.close()
            raise

    # -- frames

    def receive_raw(self) -> memoryview:
        """Wait for the next frame; returns it undecoded, without its length."""
        deadline = time.monotonic() + self.timeout_seconds
        head = self._read(LENGTH_BYTES, deadline)
        if self._served is None and self._security.tls is None and bytes(head[:2]) == _TLS_ALERT:
            self.close()
            raise ClientError(
                f"{self.address} requires TLS, but the request was sent in plain text",
                hint=f"set option {self._security.prefix}{PROTOCOL} to SSL or SASL_SSL",
            )
        if self._served is None and bytes(head) == _HTTP:
            self.close()
            wrong = mismatch(Protocol.HTTP, Protocol.KAFKA)
            raise UnreachableError(f"{self.address} is {wrong}", hint=KAFKA_PORT_HINT)
        size = int.from_bytes(head, "big", signed=True)
        if not 0 <= size <= RESPONSE_BYTES_MAX:
            self.close()
            raise PeerProtocolError(f"{self.address} announced a response of {size} bytes")
        return self._read(size, deadline)

    def _receive_frame(self) -> tuple[PendingReply, memoryview, int]:
        if not self._pending:
            raise ClientError("no response is outstanding")
        pending = self._pending.popleft()
        frame = self.receive_raw()
        try:
            correlation_id, position = read_response_header(frame, pending.api_key, pending.version)
            if correlation_id != pending.correlation_id:
                raise PeerProtocolError(
                    f"{self.address} responded to request {correlation_id} "
                    f"instead of {pending.correlation_id}"
                )
        except PeerProtocolError:
            self.close()
            raise
        return pending, frame, position

    def _read(self, size: int, deadline: float) -> memoryview:
        opened = self._opened()
        buffer = memoryview(bytearray(size))
        filled = 0
        try:
            while filled < size:
                # One deadline for the whole response: a slow sender must not extend it.
                opened.settimeout(max(deadline - time.monotonic(), 0.001))
                count = opened.recv_into(buffer[filled:])
                if not count:
                    raise ConnectionResetError("it closed the connection")
                filled += count
        except OSError as error:
            raise self._lost(error) from error
        return buffer

    # -- the socket

    def _connect(self) -> socket.socket:
        seconds = min(self.timeout_seconds, CONNECT_SECONDS_MAX)
        try:
            opened = socket.create_connection((self.host, self.port), seconds)
        except OSError as error:
            reason = connect_failure(error, seconds)
            hint = "" if isinstance(error, socket.gaierror) else START_HINT
            raise UnreachableError(f"cannot reach {self.address} ({reason})", hint=hint) from error
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._security.tls
        return opened if tls is None else self._encrypt(opened, tls)

    def _encrypt(self, opened: socket.socket, tls: Tls) -> socket.socket:
        try:
            return tls_context(tls).wrap_socket(opened, server_hostname=self.host)
        except OSError as error:
            opened.close()
            raise tls.failure(error, self.address) from error

    def _log_in(self, sasl: Sasl) -> None:
        """Authenticate. Raises ClientError, which is not retriable if the broker rejects us."""
        served = self.served_versions().get(ApiKey.SASL_HANDSHAKE)
        if served is None or served.last < _SASL_FRAMED:
            raise ClientError(
                f"{self.address} does not support SASL: see option {sasl.prefix}{PROTOCOL}"
            )
        request = SaslHandshakeRequest(mechanism=sasl.mechanism)
        chosen = self.request(request, SaslHandshakeResponse, _SASL_FRAMED)
        if chosen.error_code:
            raise ClientError(
                f"{self.address} does not support {sasl.mechanism}: see option "
                f"{sasl.prefix}sasl.mechanism",
                hint=f"it supports {', '.join(chosen.mechanisms) or 'none'}",
            )
        exchange = sasl.exchange()
        message: bytes | None = next(exchange)
        while message is not None:
            sent_at = time.monotonic()
            response = self.request(
                SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse
            )
            if response.error_code:
                raise sasl.refused(self.address, response.error_message)
            try:
                message = exchange.send(bytes(response.auth_bytes))
            except StopIteration:
                message = None
            if response.session_lifetime_ms > 0:
                self._expires_at = sent_at + response.session_lifetime_ms / 1000 * _SESSION_PART

    def _opened(self) -> socket.socket:
        if self._socket is None:
            raise UnreachableError(f"the connection to {self.address} is closed")
        return self._socket

    def _lost(self, error: OSError) -> ClientError:
        self.close()
        tls = self._security.tls
        if tls is not None and isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            # With TLS 1.3 a broker rejects our certificate only now.
            return tls.failure(error, self.address)
        if isinstance(error, TimeoutError):
            return TimedOutError(
                f"{self.address} timed out after {self.timeout_seconds:g} s",
                hint="which brokers respond? moldau doctor",
            )
        reason = (error.strerror or str(error)).lower()
        hint = ""
        if self._served is None:
            # It never responded, so the protocol may be wrong.
            prefix = self._security.prefix
            hint = f"does the broker require TLS? see option {prefix}{PROTOCOL}"
            if tls is not None:
                hint = (
                    "is it the Kafka address of a broker (kafka.addr)? does it require a "
                    f"certificate? see option {prefix}ssl.keystore.location"
                )
        elif self._security.sasl is None:
            # Listeners that require a login serve ApiVersions, and nothing else before it.
            hint = f"does the broker require a user? see option {self._security.prefix}{PROTOCOL}"
        return UnreachableError(f"lost the connection to {self.address} ({reason})", hint=hint)


def request_all(
    requests: Sequence[tuple[KafkaConnection, Request, int | None]],
) -> list[Response | ClientError]:
    """Send all requests before waiting for any; the response or the error of each."""
    failures: list[ClientError | None] = []
    for connection, message, version in requests:
        try:
            connection.post(message, version)
        except ClientError as error:
            failures.append(error)
        else:
            failures.append(None)
    responses: list[Response | ClientError] = []
    try:
        for (connection, _, _), failure in zip(requests, failures, strict=True):
            try:
                responses.append(connection.receive() if failure is None else failure)
            except ClientError as error:
                responses.append(error)
    finally:
        # A later request on these connections would receive a response that was not read here.
        for connection, _, _ in requests[len(responses) :]:
            connection.close()
    return responses
