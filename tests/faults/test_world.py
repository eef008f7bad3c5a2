"""Namespaces, volumes and processes do to a process what their names say."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.namespaces import Namespaces, cannot_use_namespaces
from faults.nodes import Node, NodeError, free_port
from faults.storage.volumes import CutVolume, FailingVolume, FullVolume, cannot_mount
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

SERVER = """
import socket
listener = socket.create_server(("0.0.0.0", 9092))
print("ready", flush=True)
while True:
    listener.accept()[0].close()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    if missing := cannot_mount(tmp_path):
        pytest.skip(missing)
    return tmp_path / "volume"


@pytest.mark.safety
def test_a_power_cut_takes_what_was_not_flushed_and_nothing_else(home: Path) -> None:
    with CutVolume(home, megabytes=16) as volume:
        path = volume.path / "file"
        with path.open("wb") as file:
            file.write(b"flushed")
            file.flush()
            os.fsync(file.fileno())
            file.write(b" and not flushed" * 1000)
            file.flush()
        volume.cut_power()
        with pytest.raises(OSError, match="Input/output error"):
            (volume.path / "late").write_bytes(b"x")
        assert volume.recover()
        assert path.read_bytes() == b"flushed"
        assert sorted(p.name for p in volume.path.iterdir()) == ["file", "lost+found"]
    assert not home.exists()


def test_a_full_volume_has_no_room_until_it_is_relieved(home: Path) -> None:
    with FullVolume(home, megabytes=4) as volume:
        assert volume.fill(leave_bytes=8192) == 8192
        assert volume.fill() == 0
        with pytest.raises(OSError, match="No space left") as caught:
            (volume.path / "file").write_bytes(b"x")
        assert caught.value.errno == errno.ENOSPC
        volume.relieve()
        (volume.path / "file").write_bytes(b"x")


def test_a_failing_volume_takes_writes_and_fails_the_flush(home: Path) -> None:
    with FailingVolume(home, megabytes=16) as volume:
        path = volume.path / "file"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.pwrite(descriptor, b"good", 0)
            os.fsync(descriptor)
            volume.fail()
            os.pwrite(descriptor, bytes(1 << 20), 4)
            with pytest.raises(OSError, match=r"Input/output|No space"):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        volume.repair()
        assert path.read_bytes()[:4] == b"good"


def test_namespaces_cut_in_one_direction_and_in_both() -> None:
    if missing := cannot_use_namespaces():
        pytest.skip(missing)
    with Namespaces(["a", "b", "c"], tag="test") as spaces:
        server = subprocess.Popen(
            [*spaces.command("b"), sys.executable, "-c", SERVER], stdout=subprocess.PIPE
        )

        def reached(source: str) -> None:
            # One try gives up soon.
            wait_until(lambda: spaces.reaches(source, "b", 9092), f"{source} reaches b")

        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"ready\n"
            reached("a")
            for source, target, both in (("a", "b", False), ("b", "a", False), ("a", "b", True)):
                spaces.cut(source, target, both=both)
                assert not spaces.reaches("a", "b", 9092)
                spaces.heal()
            spaces.cut("a", "b")
            reached("c")
            spaces.heal()
            reached("a")
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
    left = subprocess.run(
        ["ip", "netns"], capture_output=True, text=True, timeout=wait_seconds_max(), check=True
    )
    assert f"moldau-test-{os.getpid()}" not in left.stdout


def node(home: Path) -> Node:
    return Node(
        number=1,
        data_dir=home / "data",
        output=home / "output",
        listen=f"127.0.0.1:{free_port()}",
    )


@pytest.mark.safety
def test_a_paused_broker_stands_still_until_it_is_resumed_or_killed(tmp_path: Path) -> None:
    broker = node(tmp_path)
    broker.start()
    try:
        broker.pause()
        assert broker.state() == "T"
        broker.resume()
        wait_until(lambda: broker.state() != "T", "it goes on")
        broker.pause()
        assert broker.kill() == -9
        assert not broker.alive()
        broker.start()
        assert broker.stop() == 0
    finally:
        broker.close()


def test_a_broker_that_refuses_to_start_is_reported_with_its_output(tmp_path: Path) -> None:
    broker = node(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "broker.json").write_text("{}")
    with pytest.raises(NodeError, match=r"broker\.json"):
        broker.start()
    assert not broker.alive()
