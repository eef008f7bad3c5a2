"""A broker leaves no core file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.testing.broker import Broker

pytestmark = pytest.mark.system


def test_a_broker_has_no_room_for_a_core_file(moldau_broker: Broker) -> None:
    limits = Path(f"/proc/{moldau_broker.pid}/limits").read_text().splitlines()
    (line,) = [line for line in limits if line.startswith("Max core file size")]
    assert line.split()[4:6] in (["1", "1"], ["0", "0"])


def test_a_process_that_crashes_afterwards_dumps_nothing(tmp_path: Path) -> None:
    code = (
        "import os, resource\n"
        "hard = resource.getrlimit(resource.RLIMIT_CORE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\n"
        "from moldau.server.core_dumps import forbid_core_dumps\n"
        "forbid_core_dumps()\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "os.abort()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGABRT
    assert os.listdir(tmp_path) == []
