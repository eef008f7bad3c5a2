"""How a pod learns its zone: the script of the init container asks an API server over TLS."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from secure_front import identity, server_context

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).parents[2] / "deploy/helm/moldau/files/zone.py"
LABEL = "topology.kubernetes.io/zone"
NODES: dict[str, dict[str, Any]] = {
    "/api/v1/nodes/with": {"metadata": {"labels": {LABEL: "zone-b"}}},
    "/api/v1/nodes/without": {"metadata": {}},
}


class ApiServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == "Bearer of-the-pod"
        body = json.dumps(NODES[self.path]).encode()
        self.send_response(200 if is_known else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What Kubernetes gives to a container."""
    authority = identity("authority")
    server = ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    tls = server_context(identity("api", hosts=("127.0.0.1",), signer=authority), tmp_path)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    (tmp_path / "token").write_text("of-the-pod\n")
    (tmp_path / "ca.crt").write_text(authority.pem)
    yield {
        **os.environ,
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.server_port),
        "SERVICE_ACCOUNT_DIR": str(tmp_path),
        "ZONE_TRIES": "1",
    }
    server.shutdown()
    thread.join()
    server.server_close()


def ask(variables: dict[str, str], node: str, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), LABEL, str(file)],
        env={**variables, "NODE_NAME": node},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("node", "zone"), [("with", "zone-b"), ("without", "")])
def test_the_zone_is_the_label_of_the_node(
    node: str, zone: str, variables: dict[str, str], tmp_path: Path
) -> None:
    done = ask(variables, node, tmp_path / "rack")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rack").read_text() == zone


def test_a_service_account_without_the_right_is_named(
    variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("of somebody else")
    done = ask(variables, "with", tmp_path / "rack")
    assert done.returncode == 1
    assert "HTTP 403; may this service account get nodes?" in done.stderr
    assert not (tmp_path / "rack").exists()
