"""A Node client with @grpc/grpc-js works through the proxy, wherever npm can fetch its packages.

With MOLDAU_TEST_LANGUAGES=node it is an error if it cannot.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from proxy_process import proxy_process

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = [pytest.mark.compat, pytest.mark.system, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).parent / "node"
PROTO = Path(__file__).parents[2] / "proto" / "moldau" / "v1" / "queue.proto"
WANTED = set(os.environ.get("MOLDAU_TEST_LANGUAGES", "").replace(",", " ").split())


@pytest.mark.safety
def test_a_node_client_creates_sends_polls_and_acks(
    moldau_session_broker: Broker, tmp_path: Path
) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    place = tmp_path / "node"
    shutil.copytree(PROGRAM, place)
    # A registry that is not reached is waited for by npm for minutes.
    fetched = run(place, "timeout", "120", "npm", "install", "--silent", "--no-audit", "--no-fund")
    if fetched.returncode and "node" not in WANTED:
        pytest.skip("npm cannot fetch @grpc/grpc-js here")
    assert fetched.returncode == 0, f"{fetched.stdout}\n{fetched.stderr}"
    with proxy_process([moldau_session_broker.grpc_address]) as proxy:
        done = run(place, "node", "client.js", proxy.address, str(PROTO))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "100 messages sent, polled and acked" in done.stdout


def run(place: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120 + wait_seconds_max(),
        check=False,
    )
