"""How a pod learns its zone: the script of the init container asks an API server over TLS."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_api import kubernetes_api

from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).parents[2] / "deploy/helm/moldau/files/zone.py"
LABEL = "topology.kubernetes.io/zone"
LABELS = {"with": {LABEL: "zone-b"}, "without": {}}


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What Kubernetes gives to a container."""
    with kubernetes_api(tmp_path, LABELS) as api:
        for name, content in api.account.items():
            (tmp_path / name).write_text(content)
        yield {
            **os.environ,
            **api.variables,
            "SERVICE_ACCOUNT_DIR": str(tmp_path),
            "ZONE_TRIES": "1",
        }


AS_PYTHON_3_13 = """
import runpy, ssl, sys

make = ssl.create_default_context

def strict(*arguments, **options):
    context = make(*arguments, **options)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context

ssl.create_default_context = strict
sys.argv[:1] = []
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ask(
    variables: dict[str, str], node: str, file: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, str(SCRIPT), LABEL, str(file)],
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


def test_an_authority_without_key_identifiers_is_trusted_by_every_python(
    variables: dict[str, str], tmp_path: Path
) -> None:
    done = ask(variables, "with", tmp_path / "rack", "-c", AS_PYTHON_3_13)
    assert done.returncode == 0, done.stderr


def test_a_service_account_without_the_right_is_named(
    variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("of somebody else")
    done = ask(variables, "with", tmp_path / "rack")
    assert done.returncode == 1
    assert "HTTP 403; may this service account get nodes?" in done.stderr
    assert not (tmp_path / "rack").exists()


def test_sigterm_ends_it_though_it_is_the_first_process_of_its_container(
    variables: dict[str, str], tmp_path: Path
) -> None:
    """That is: it has a handler, and waits not for the API server."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        variables["KUBERNETES_SERVICE_PORT"] = str(silent.getsockname()[1])
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), LABEL, str(tmp_path / "rack")],
            env={**variables, "NODE_NAME": "with"},
        )
        _held = silent.accept()
        process.send_signal(signal.SIGTERM)
        assert process.wait(wait_seconds_max()) == 128 + signal.SIGTERM
