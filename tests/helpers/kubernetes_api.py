"""As much of Kubernetes' API server as pods of the chart ask: the labels of nodes, over TLS."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from secure_front import identity, server_context

TOKEN = "of-the-pod"


class Api(NamedTuple):
    """What Kubernetes gives to a pod: variables, and the files of its service account."""

    variables: dict[str, str]
    account: dict[str, str]


@contextmanager
def kubernetes_api(folder: Path, labels: Mapping[str, Mapping[str, str]]) -> Iterator[Api]:
    """`labels` by node; a node without labels has none at all."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers["Authorization"] == f"Bearer {TOKEN}"
            found = labels[self.path.removeprefix("/api/v1/nodes/")]
            body = json.dumps({"metadata": {"labels": found} if found else {}}).encode()
            self.send_response(200 if is_known else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    authority = identity("authority")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = server_context(identity("api", hosts=("127.0.0.1",), signer=authority), folder)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Api(
            {
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(server.server_port),
            },
            {"token": TOKEN, "ca.crt": authority.pem},
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
