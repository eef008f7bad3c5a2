import sys
from pathlib import Path

import pytest

from benchmarks import servers
from benchmarks.harness import (
    BenchmarkError,
    Server,
    cpu_seconds,
    process_tree,
    run_client,
    workspace,
)
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

SPIN = (
    "import time\nwhile time.process_time() < 0.3: pass\nprint('spun', flush=True)\ntime.sleep(600)"
)


def test_cpu_time_is_counted_with_that_of_children(tmp_path: Path) -> None:
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"
    with Server("spin", [sys.executable, "-c", parent], directory=tmp_path) as server:
        server.wait_for(lambda: "spun" in server.output(), seconds_max=wait_seconds_max())
        assert server.cpu_seconds() >= 0.3


def test_a_stopped_server_leaves_no_child_behind(tmp_path: Path) -> None:
    child = "import time; print('up', flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    server = Server("parent", [sys.executable, "-c", parent], directory=tmp_path)
    server.wait_for(lambda: "up" in server.output(), seconds_max=wait_seconds_max())
    children = [pid for pid in process_tree(server.pid) if pid != server.pid]
    assert children
    server.stop()
    wait_until(
        lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in children),
        "no child is running",
    )


def test_a_server_that_ends_early_is_reported_with_its_output(tmp_path: Path) -> None:
    server = Server("short", [sys.executable, "-c", "print('no disk')"], directory=tmp_path)
    with pytest.raises(BenchmarkError, match="no disk"):
        server.wait_for(lambda: False, seconds_max=wait_seconds_max())


def test_a_workspace_is_gone_after_an_error() -> None:
    seen = []

    def fail() -> None:
        with workspace() as directory:
            (directory / "file").write_text("x")
            seen.append(directory)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not seen[0].exists()


def test_a_process_that_is_gone_costs_nothing() -> None:
    assert cpu_seconds(2**22 - 1) == 0.0


@pytest.mark.parametrize("kind", ["kafka-produce", "kafka-produce-confluent", "kafka-raw-produce"])
def test_loads_move_every_message_to_a_broker(kind: str, tmp_path: Path) -> None:
    with servers.mock_cluster(tmp_path, 6) as mock:
        sample = run_client(
            kind,
            {
                "port": mock.port,
                "bootstrap": mock.bootstrap,
                "topic": "bench",
                "size": 100,
                "count": 3000,
                "partitions": 6,
                "batch_bytes": 16_384,
            },
            mock.server,
        )
    # The raw load sends whole batches: it may stop short of the count by less than one.
    assert 2850 < sample.messages <= 3000
    assert sample.bytes == sample.messages * 100
    assert sample.server_cpu_s > 0
    assert sample.server_rss_bytes > 0


def test_a_load_that_fails_is_an_error(tmp_path: Path) -> None:
    with servers.mock_cluster(tmp_path, 6) as mock, pytest.raises(BenchmarkError):
        run_client("kafka-raw-small", {"port": mock.port}, mock.server)


def test_a_broker_is_started_on_an_empty_directory_and_again_on_what_it_left(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        running = servers.start_moldau(tmp_path)
        try:
            assert servers.kafka_answers(running.port)
        finally:
            running.server.stop()
