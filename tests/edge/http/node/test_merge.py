"""A process that speaks for its whole node, and others that run, start, hang or are gone."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from moldau.edge.http.metrics.table import family
from moldau.edge.http.node import link
from moldau.edge.http.node.link import NodeLinks, NodeListener
from moldau.edge.http.node.merge import Node

pytestmark = pytest.mark.inprocess

REPLIES = {
    "/healthz": (200, {"status": "ok"}),
    "/readyz": (503, {"ready": False, "reasons": ["no majority"]}),
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    assert (await receive())["body"] == b""
    status, body = REPLIES.get(scope["path"], (200, None))
    text = b"# HELP a A.\n# TYPE a gauge\na 2\n" if body is None else json.dumps(body).encode()
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": text[:3], "more_body": True})
    await send({"type": "http.response.body", "body": text[3:]})


class Others:
    """Listeners of other processes; their directory has a path that no socket address holds."""

    def __init__(self, root: Path) -> None:
        self.root = root / ("d" * 120)
        self.root.mkdir()
        self._listeners: list[NodeListener] = []
        self._paths: list[tuple[int, Path]] = []

    async def add(self, served: Any = None) -> None:
        """None: the process does not run."""
        number = len(self._paths) + 2
        path = self.root / f"{number}.sock"
        self._paths.append((number, path))

        async def load() -> Any:
            return served

        if served is not None:
            listener = NodeListener(path, load)
            self._listeners.append(listener)
            listener.bind()
            await listener.start()

    def node(self) -> Node:
        own = self.root / "1.sock"
        return Node(NodeLinks(number=1, port=8080, path=own, others=lambda: self._paths))

    def close(self) -> None:
        for one in self._listeners:
            one.close()


@pytest.fixture
def others(tmp_path):
    made = Others(tmp_path)
    yield made
    made.close()


async def test_the_shared_port_means_the_node():
    node = Node(NodeLinks(number=1, port=8080, path=Path(), others=list))
    assert node.is_meant({"server": ("127.0.0.1", 8080)})
    assert not node.is_meant({"server": ("127.0.0.1", 8081)})
    # Asked by another process of the node: it would ask back.
    assert not node.is_meant({"server": None})


async def test_each_process_says_how_it_is(others):
    await others.add(app)
    await others.add()
    node = others.node()
    assert await node.health() == {1: "ok", 2: "ok", 3: "down"}
    assert await node.reasons(("own",)) == (
        "process 1: own",
        "process 2: no majority",
        "process 3: it is not running, or still starting",
    )
    others.close()


@pytest.mark.safety
async def test_one_that_hangs_is_named_and_not_waited_for(others, monkeypatch):
    release = asyncio.Event()

    async def hang(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()

    monkeypatch.setattr(link, "ASK_SECONDS_MAX", 0.05)
    await others.add(app)
    await others.add(hang)
    node = others.node()
    assert await node.health() == {1: "ok", 2: "ok", 3: "hung"}
    assert "process 3: it does not respond" in await node.reasons(())
    release.set()
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)
    others.close()


async def test_metrics_are_one_exposition_and_say_who_is_missing(others):
    await others.add(app)
    await others.add()
    own = "# HELP a A.\n# TYPE a gauge\na 1\n"
    text = await others.node().metrics(own, b"", family("moldau_node_process_up"))
    assert text.split("\n") == [
        "# HELP a A.",
        "# TYPE a gauge",
        'a{process="1"} 1',
        'a{process="2"} 2',
        "# HELP moldau_node_process_up 1 if this process of a node responds.",
        "# TYPE moldau_node_process_up gauge",
        'moldau_node_process_up{process="1"} 1',
        'moldau_node_process_up{process="2"} 1',
        'moldau_node_process_up{process="3"} 0',
        "",
    ]
    others.close()


async def test_what_a_killed_process_left_is_replaced_and_no_other_user_gets_in(others):
    path = others.root / "2.sock"
    path.write_text("left over")
    await others.add(app)
    assert path.stat().st_mode & 0o077 == 0
    assert (await link.ask(path, "/healthz")).status == 200
    others.close()
    assert not path.exists()
