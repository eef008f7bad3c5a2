"""The supervisor's control socket: a Unix socket, one JSON line per request and response.

Only the supervisor starts and stops brokers. A request changes the desired state and returns at
once; the client then polls the state.
"""

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from moldau.model.exit_codes import ExitCode
from moldau.supervisor.errors import SupervisorError
from moldau.supervisor.state import ClusterState

_NAME = "cluster.sock"
# The address of a Unix socket has room for 104 bytes (macOS) or 108.
_PATH_BYTES_MAX = 100
_REQUEST_BYTES_MAX = 64 * 1024
_REQUEST_SECONDS_MAX = 1.0
_REPLY_SECONDS_MAX = 10.0

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class ControlServer:
    """Accepts requests; used by the supervisor."""

    def __init__(self, directory: Path) -> None:
        path = directory.absolute() / _NAME
        self._made: Path | None = None
        if len(os.fsencode(path)) > _PATH_BYTES_MAX:
            self._made = Path(tempfile.mkdtemp(prefix="moldau-"))
            path = self._made / _NAME
        self.path = path
        # Left by a killed supervisor; the caller holds the lock, so there is no other.
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(before)
        self._socket.listen(16)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def serve_one(self, handler: Handler) -> None:
        """Handle one pending request, if there is one."""
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return
        with connection:
            connection.settimeout(_REQUEST_SECONDS_MAX)
            try:
                request = json.loads(_read_line(connection))
                if not isinstance(request, dict):
                    return
                reply = handler(request)
                connection.sendall(json.dumps(reply).encode() + b"\n")
            except (OSError, ValueError):
                # The client disconnected, or sent something else.
                return

    def close(self) -> None:
        self._socket.close()
        self.path.unlink(missing_ok=True)
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)


def send_request(path: str, verb: str, **arguments: object) -> dict[str, Any] | None:
    """Send a request; None if no supervisor runs. Raises SupervisorError if it is rejected."""
    if not path:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_REPLY_SECONDS_MAX)
        try:
            connection.connect(path)
            connection.sendall(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
            line = _read_line(connection)
        except TimeoutError as error:
            raise SupervisorError(
                f"the supervisor did not respond on {path} within {_REPLY_SECONDS_MAX:g} s",
                hint="its process is suspended or overloaded; retry later",
            ) from error
        except OSError:
            return None
    if not line:
        return None
    reply = json.loads(line)
    if "error" in reply:
        code = ExitCode(reply.get("code", ExitCode.FAILED))
        raise SupervisorError(str(reply["error"]), hint=str(reply.get("hint", "")), code=code)
    return dict(reply)


def state_of(reply: dict[str, Any]) -> ClusterState:
    """The state in a response of the supervisor."""
    return msgspec.convert(reply["state"], ClusterState)


def _read_line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < _REQUEST_BYTES_MAX:
        part = connection.recv(65536)
        if not part:
            break
        data += part
    return data
