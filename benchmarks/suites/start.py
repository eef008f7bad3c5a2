"""Start, memory, and restart: after a clean stop, and after kill -9."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic
from benchmarks.harness import BenchmarkError, run_client

STEPS = 3
IDLE_CONNECTIONS = 1000
IDLE_PARTITIONS = 100
SETTLE_S = 1.0


def run(bench: Bench) -> None:
    _start(bench)
    _memory(bench)
    _restart(bench)


def _start(bench: Bench) -> None:
    bench.step("start on an empty directory")
    for turn in range(bench.repetitions + 1):
        running = servers.start_moldau(bench.directory, name=f"start{turn}")
        running.server.stop()
        if turn == 0:
            continue  # The first start reads the program from the disk and compiles it.
        bench.record("start.ready_s", running.ready_s)
        bench.record("start.cpu_s", running.ready_cpu_s)
    bench.done()


def _memory(bench: Bench) -> None:
    bench.step("memory: partitions and connections")
    for turn in range(bench.repetitions):
        with (
            servers.moldau(bench.directory, name=f"memory{turn}") as moldau,
            topic(moldau, IDLE_PARTITIONS),
        ):
            time.sleep(SETTLE_S)
            idle = moldau.server.rss_bytes()
            bench.record("memory.idle_mb", idle / 1e6)
            sample = run_client(
                "kafka-raw-idle",
                {"port": moldau.port, "count": IDLE_CONNECTIONS},
                moldau.server,
                settle_s=SETTLE_S,
            )
            bench.record("memory.connections_mb", (sample.server_rss_bytes - idle) / 1e6)
    bench.done()


def _restart(bench: Bench) -> None:
    """Fill a log, kill -9, start, stop cleanly, start again: the same bytes for both figures."""
    megabytes = bench.scale(1000, 250)
    bench.step(f"restart with {megabytes} MB of log")
    bench.note(f"Restarts were measured with {megabytes} MB of log in {PARTITIONS} partitions.")
    for turn in range(bench.repetitions if not bench.quick else 1):
        data = bench.directory / f"restart{turn}-data"
        running = servers.start_moldau(bench.directory, name=f"restart{turn}", data_dir=data)
        with_log = _fill_and_kill(bench, running, megabytes)
        if with_log < megabytes * 0.99e6:
            raise BenchmarkError(f"only {with_log} bytes of log were written")
        killed = _timed_start(bench, data, f"restart{turn}", "killed")
        killed.server.stop()
        clean = _timed_start(bench, data, f"restart{turn}", "clean")
        clean.server.stop()
        shutil.rmtree(data, ignore_errors=True)
    bench.done()


def _fill_and_kill(bench: Bench, running: servers.Running, megabytes: int) -> int:
    from confluent_kafka.admin import AdminClient, NewTopic

    try:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic("restart", PARTITIONS, 1)])["restart"].result(15)
        sample = bench.load(
            "fill.restart",
            "kafka-raw-produce",
            running,
            topic="restart",
            size=1024,
            count=megabytes * 1_000_000 // 1024,
            partitions=PARTITIONS,
            batch_bytes=1_000_000,
        )
        return sample.bytes
    finally:
        running.server.stop(signal.SIGKILL)


def _timed_start(bench: Bench, data: Path, name: str, how: str) -> servers.Running:
    running = servers.start_moldau(bench.directory, name=name, data_dir=data)
    bench.record(f"restart.{how}_s", running.ready_s)
    bench.record(f"restart.{how}_cpu_s", running.ready_cpu_s)
    return running
