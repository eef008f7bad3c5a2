"""A scripted broker: a socket that answers each request as the test says."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from chunks import joined

from moldau.testing.waiting import wait_seconds_max
from moldau.wire.framing import RequestHeader, frame_response, read_request_header
from moldau.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.wire.registry import APIS, REQUESTS, ApiKey
from moldau.wire.schema import Request, Response

Answer = Response | bytes | None
Handler = Callable[[Request, int], Answer]


class ScriptedBroker:
    """Serves `handlers` by API key: a response, raw bytes to send, or None for no answer."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {ApiKey.API_VERSIONS: self.api_versions}
        self.served = {key: tuple(api.versions) for key, api in APIS.items()}
        self.requests: list[tuple[RequestHeader, Request | None]] = []
        self.connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def api_versions(self, request: Request | None, version: int) -> ApiVersionsResponse:
        keys = [
            ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, (first, last) in self.served.items()
        ]
        return ApiVersionsResponse(api_keys=keys)

    def hang_up(self) -> None:
        # Those of now: a client that is quick is back before the last of them is closed.
        for connection in list(self.connections):
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # shutdown wakes the thread that waits in accept; close alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            connection.close()
        for thread in self._threads:
            thread.join(wait_seconds_max())

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        try:
            while head := stream.read(4):
                size = int.from_bytes(head, "big")
                frame = stream.read(size)
                if len(frame) < size:
                    # The client gave up in the middle of it.
                    return
                reply = self._answer(memoryview(frame))
                if reply:
                    connection.sendall(reply)
        except OSError:
            return
        finally:
            stream.close()
            connection.close()

    def _answer(self, frame: memoryview) -> bytes:
        header = read_request_header(frame)
        request: Request | None = None
        if header.body_position >= 0:
            request = REQUESTS[header.api_key].decode(
                frame, header.api_version, header.body_position
            )
        self.requests.append((header, request))
        first, last = self.served[header.api_key]
        if header.api_key == ApiKey.API_VERSIONS and not first <= header.api_version <= last:
            refusal = self.api_versions(request, 0)
            refusal.error_code = 35
            chunks = frame_response(header.api_key, 0, header.correlation_id, refusal.encode(0))
            return joined(chunks)
        assert request is not None
        answer = self.handlers[header.api_key](request, header.api_version)
        if answer is None or isinstance(answer, bytes):
            return answer or b""
        body = answer.encode(header.api_version)
        return joined(
            frame_response(header.api_key, header.api_version, header.correlation_id, body)
        )


@pytest.fixture
def scripted_broker() -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker()
    yield broker
    broker.close()
