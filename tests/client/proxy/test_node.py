"""A Node client with @grpc/grpc-js works through the proxy, on request: MOLDAU_TEST_LANGUAGES=node.

Its packages are fetched by npm, which takes a while; that is why it does not run by default.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from proxy_process import proxy_process

from moldau.testing.broker import Broker

pytestmark = [pytest.mark.compat, pytest.mark.system, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).parent / "node"
PROTO = Path(__file__).parents[3] / "proto" / "moldau" / "v1" / "queue.proto"
WANTED = set(os.environ.get("MOLDAU_TEST_LANGUAGES", "").replace(",", " ").split())


def test_a_node_client_creates_sends_polls_and_acks(
    moldau_session_broker: Broker, tmp_path: Path
) -> None:
    if "node" not in WANTED:
        pytest.skip("fetches packages; wanted with MOLDAU_TEST_LANGUAGES=node")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    place = tmp_path / "node"
    shutil.copytree(PROGRAM, place)
    with proxy_process([moldau_session_broker.grpc_address]) as proxy:
        for command in (
            ["npm", "install", "--silent", "--no-audit", "--no-fund"],
            ["node", "client.js", proxy.address, str(PROTO)],
        ):
            done = subprocess.run(
                command, cwd=place, capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "100 messages sent, polled and acked" in done.stdout
