"""A node of several broker processes, as `moldau broker start --processes N` runs it."""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from moldau.model.process_option import PROCESS_OPTION
from moldau.testing.broker import Broker
from moldau.testing.ports import free_port_run
from moldau.testing.waiting import wait_seconds_max, wait_until


class NodeBroker(Broker):
    def __init__(
        self, data_dir: Path, *options: str, processes: str = "2", **settings: str
    ) -> None:
        """`options`: how it gets its cluster."""
        super().__init__(data_dir=data_dir, settings=settings, port=free_port_run(4))
        self.raft_port, self.http_port, self.grpc_port = (free_port_run(4) for _ in range(3))
        self.processes = processes
        self._options = options or ("--bootstrap",)

    def arguments(self) -> list[str]:
        found = super().arguments()
        del found[found.index("--id") : found.index("--id") + 2]
        found.remove("--bootstrap")
        return [*found, "--processes", self.processes, *self._options]

    def children(self) -> dict[int, int]:
        """The pid of each process by its number."""
        found = {}
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        for pid in map(int, text.split()):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if (option := PROCESS_OPTION.encode()) in words:
                found[int(words[words.index(option) + 1])] = pid
        return found

    def get(self, path: str, process: int = 0) -> tuple[int, bytes]:
        """Status and body; of the address of one process, or of the node."""
        url = f"http://127.0.0.1:{self.http_port + process}{path}"
        try:
            with urllib.request.urlopen(url, timeout=wait_seconds_max()) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def json(self, path: str, process: int = 0) -> Any:
        return json.loads(self.get(path, process)[1])

    def ask(self, path: str, body: dict[str, Any]) -> None:
        """Of the node, as its local administrator."""
        token = (self.data_dir / "admin.token").read_text().strip()
        request = urllib.request.Request(
            f"http://{self.http_address}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
        )
        urllib.request.urlopen(request, timeout=wait_seconds_max()).close()

    def until_ready(self) -> None:
        def ready() -> bool:
            return self.get("/readyz")[0] == 200

        wait_until(ready, "the node is ready", ignoring=OSError, describe=lambda: self.output)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"
