"""Owns one connection to one broker: blocking, requests answered in the order they were sent."""

import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from moldau import __version__
from moldau.client.errors import (
    START_HINT,
    ClientError,
    RejectedError,
    TimedOutError,
    UnreachableError,
)
from moldau.client.wire.sasl import Sasl
from moldau.client.wire.security import PROTOCOL, Security, Tls, tls_context
from moldau.model.errors import ErrorCode, PeerProtocolError
from moldau.model.slices import Chunk, FileSlice
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
"""Largest response that is read; checked before memory for it is taken."""

_TLS_ALERT: Final = b"\x15\x03"
"""How the answer begins of somebody who waits for TLS."""
_SASL_FRAMED: Final = 1
"""The version of SaslHandshake from which on SASL travels in requests of Kafka's."""
_SESSION_PART: Final = 0.9
"""Of a login's time, after which another connection is made."""
PLAIN_TEXT: Final = Security()

R = TypeVar("R", bound=Response)


class PendingReply(NamedTuple):
    """A request on its way: what its response will be."""

    api_key: int
    version: int
    correlation_id: int


class KafkaConnection:
    """A socket to a broker that speaks messages of `moldau.wire`.

    `send` asks and waits. `post` and `receive` do the two halves, so that several requests can be
    under way; responses come back in the order of the requests. After an error of the socket or
    of the protocol the connection is closed and cannot be used again. Not for use by two threads.
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
        """Whether the login is about to end, and nothing is on its way: brokers then hang up."""
        expires_at = self._expires_at
        return expires_at is not None and time.monotonic() >= expires_at and not self._pending

    @property
    def pending_count(self) -> int:
        """Requests posted whose responses were not received yet."""
        return len(self._pending)

    def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- versions

    def served_versions(self) -> dict[int, Versions]:
        """What the broker serves, by API key; asked once."""
        if self._served is None:
            response = self._ask_versions()
            self._served = {
                api.api_key: Versions(api.min_version, api.max_version) for api in response.api_keys
            }
        return self._served

    def version_for(self, message: Request | type[Request]) -> int:
        """The highest version that both sides know. Raises ClientError if there is none."""
        key, ours = message.API_KEY, message.VERSIONS
        theirs = self.served_versions().get(key)
        name = APIS[key].name
        if theirs is None:
            raise ClientError(f"{self.address} does not serve {name}")
        version = min(ours.last, theirs.last)
        if version < max(ours.first, theirs.first):
            raise ClientError(
                f"{self.address} serves {name} {theirs.first} to {theirs.last}, "
                f"this client knows {ours.first} to {ours.last}"
            )
        return version

    def _ask_versions(self) -> ApiVersionsResponse:
        if self._pending:
            raise ClientError("responses are outstanding: receive them before asking for versions")
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
                f"{self.address} refuses to tell its versions (code {response.error_code})",
                response.error_code,
            )
        return response

    def _exchange_versions(self, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        self.post(request, version)
        pending, frame, position = self._receive_frame()
        if frame[position : position + 2] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big"):
            # A broker that does not know the version answers in the oldest one.
            return ApiVersionsResponse.decode(frame, 0, position)
        return ApiVersionsResponse.decode(frame, pending.version, position)

    # -- requests

    def send(self, message: Request, version: int | None = None) -> Response:
        """Ask and wait for the response; without `version`, in the highest common one."""
        if self._pending:
            raise ClientError("responses are outstanding: use receive() until there are none")
        self.post(message, version)
        return self.receive()

    def ask(self, message: Request, response_type: type[R], version: int | None = None) -> R:
        """As `send`, with the type of the response known to the type checker."""
        response = self.send(message, version)
        if not isinstance(response, response_type):
            raise TypeError(
                f"{type(message).__name__} is answered with {type(response).__name__}, "
                f"not with {response_type.__name__}"
            )
        return response

    def post(self, message: Request, version: int | None = None, *, reply: bool = True) -> int:
        """Send without waiting; the correlation id. `reply=False` if none will come (acks=0)."""
        if version is None:
            version = self.version_for(message)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        chunks = frame_request(message, version, self._correlation_id, self.client_id)
        self.post_raw(chunks)
        if reply:
            self._pending.append(PendingReply(message.API_KEY, version, self._correlation_id))
        return self._correlation_id

    def post_raw(self, chunks: list[Chunk]) -> None:
        """Send bytes as they are; no response is expected by this connection."""
        opened = self._opened()
        try:
            opened.settimeout(self.timeout_seconds)
            for chunk in chunks:
                opened.sendall(_read_slice(chunk) if isinstance(chunk, FileSlice) else chunk)
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
        """Wait for the next frame and give it as it is, without its length."""
        deadline = time.monotonic() + self.timeout_seconds
        head = self._read(LENGTH_BYTES, deadline)
        if self._served is None and self._security.tls is None and bytes(head[:2]) == _TLS_ALERT:
            self.close()
            raise ClientError(
                f"{self.address} speaks TLS, and was asked in plain text",
                hint=f"set option {self._security.prefix}{PROTOCOL} to SSL or SASL_SSL",
            )
        size = int.from_bytes(head, "big", signed=True)
        if not 0 <= size <= RESPONSE_BYTES_MAX:
            self.close()
            raise PeerProtocolError(f"{self.address} announces a response of {size} bytes")
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
                    f"{self.address} answers request {correlation_id} "
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
                # The deadline is that of the whole response: a trickle must not go on for ever.
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
        try:
            opened = socket.create_connection((self.host, self.port), self.timeout_seconds)
        except TimeoutError as error:
            reason = f"no answer within {self.timeout_seconds:g} s"
            raise UnreachableError(
                f"cannot reach {self.address} ({reason})", hint=START_HINT
            ) from error
        except socket.gaierror as error:
            raise UnreachableError(f"cannot reach {self.address} (no such host)") from error
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UnreachableError(
                f"cannot reach {self.address} ({reason})", hint=START_HINT
            ) from error
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
        """Raises ClientError, which cannot pass by itself if the broker refuses."""
        served = self.served_versions().get(ApiKey.SASL_HANDSHAKE)
        if served is None or served.last < _SASL_FRAMED:
            raise ClientError(
                f"{self.address} takes no passwords: see option {sasl.prefix}{PROTOCOL}"
            )
        request = SaslHandshakeRequest(mechanism=sasl.mechanism)
        chosen = self.ask(request, SaslHandshakeResponse, _SASL_FRAMED)
        if chosen.error_code:
            raise ClientError(
                f"{self.address} does not take {sasl.mechanism}: see option "
                f"{sasl.prefix}sasl.mechanism",
                hint=f"it takes {', '.join(chosen.mechanisms) or 'none'}",
            )
        exchange = sasl.exchange()
        message: bytes | None = next(exchange)
        while message is not None:
            sent_at = time.monotonic()
            answer = self.ask(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
            if answer.error_code:
                raise sasl.refused(self.address, answer.error_message)
            try:
                message = exchange.send(bytes(answer.auth_bytes))
            except StopIteration:
                message = None
            if answer.session_lifetime_ms > 0:
                self._expires_at = sent_at + answer.session_lifetime_ms / 1000 * _SESSION_PART

    def _opened(self) -> socket.socket:
        if self._socket is None:
            raise UnreachableError(f"the connection to {self.address} is closed")
        return self._socket

    def _lost(self, error: OSError) -> ClientError:
        self.close()
        tls = self._security.tls
        if tls is not None and isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            # With TLS 1.3 a broker tells only now that it wants another certificate.
            return tls.failure(error, self.address)
        if isinstance(error, TimeoutError):
            return TimedOutError(f"{self.address} did not answer within {self.timeout_seconds:g} s")
        reason = (error.strerror or str(error)).lower()
        hint = ""
        if self._served is None:
            # It never said a word, so it may have been asked in a wrong way.
            prefix = self._security.prefix
            hint = f"does it speak TLS? see option {prefix}{PROTOCOL}"
            if tls is not None:
                hint = f"does it ask for a certificate? see option {prefix}ssl.keystore.location"
        return UnreachableError(f"lost the connection to {self.address} ({reason})", hint=hint)


def request_all(
    asked: Sequence[tuple[KafkaConnection, Request, int | None]],
) -> list[Response | ClientError]:
    """Send all requests before waiting for any; of each the response, or why there is none."""
    failures: list[ClientError | None] = []
    for connection, message, version in asked:
        try:
            connection.post(message, version)
        except ClientError as error:
            failures.append(error)
        else:
            failures.append(None)
    answers: list[Response | ClientError] = []
    try:
        for (connection, _, _), failure in zip(asked, failures, strict=True):
            try:
                answers.append(connection.receive() if failure is None else failure)
            except ClientError as error:
                answers.append(error)
    finally:
        # Whoever asks next over the same connection must not get what was not waited for.
        for connection, _, _ in asked[len(answers) :]:
            connection.close()
    return answers


def _read_slice(chunk: FileSlice) -> bytes:
    data = chunk.file.pread(chunk.size, chunk.position)
    if len(data) != chunk.size:
        raise ClientError(f"the file ends {chunk.size - len(data)} bytes too early")
    return data
