"""The page about queues in Python says what is there, and its blocks run as pasted."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moldau import AsyncQueueClient, AsyncWorker, QueueClient, Worker
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "python-queues.md"


def test_the_blocks_run_one_after_the_other_as_pasted(moldau_session_broker: Broker) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    said = []
    for block in blocks:
        code = block.replace("localhost:8000", moldau_session_broker.grpc_address)
        assert code != block
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            capture_output=True,
            text=True,
            timeout=wait_seconds_max(),
            env={key: os.environ[key] for key in os.environ if not key.startswith("MOLDAU_")},
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        said.append(done.stdout)
    first, handlers, on_asyncio = said
    assert "1 {'resize': '" in first
    polled = first.count("resize")
    assert handlers.count("resizing") == 4 - polled
    assert handlers.endswith(f"{4 - polled} done, 0 failed\n")
    assert on_asyncio == ""


@pytest.mark.parametrize("kind", [QueueClient, Worker])
def test_every_method_is_named(kind: type) -> None:
    text = PAGE.read_text()
    inner = {"wrap", "is_closed", "group"}
    names = {name for name in vars(kind) if not name.startswith("_")} - inner
    assert [name for name in sorted(names) if not re.search(rf"[`.,]\s?{name}\b", text)] == []


@pytest.mark.parametrize(
    ("plain", "on_asyncio"), [(QueueClient, AsyncQueueClient), (Worker, AsyncWorker)]
)
def test_both_clients_take_the_same(plain: type, on_asyncio: type) -> None:
    for name, method in vars(plain).items():
        if name.startswith("_") or not inspect.isfunction(method) or name == "wrap":
            continue
        parameters = inspect.signature(method).parameters
        twin = inspect.signature(getattr(on_asyncio, name)).parameters
        assert [*parameters] == [*twin], name
        defaults = [each.default for each in parameters.values()]
        assert defaults == [each.default for each in twin.values()], name
