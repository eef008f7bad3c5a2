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
    """Fill a log, kill -9, start, stop cleanly, start again: the same bytes for both figures.

    Each start is followed by a count of what is there: a broker that forgot its log starts fast.
    """
    megabytes = bench.scale(1000, 250)
    bench.step(f"restart with {megabytes} MB of log")
    bench.note(f"Restarts were measured with {megabytes} MB of log in {PARTITIONS} partitions.")
    for turn in range(1 if bench.quick else bench.repetitions):
        data = bench.directory / f"restart{turn}-data"
        written = _fill_and_kill(bench, data, megabytes)
        if disk_bytes(data) < megabytes * 1e6:
            raise BenchmarkError(f"{data} holds less than the {megabytes} MB that were written")
        for how in ("killed", "clean"):
            running = servers.start_moldau(bench.directory, name="restart", data_dir=data)
            try:
                bench.record(f"restart.{how}_s", running.ready_s)
                bench.record(f"restart.{how}_cpu_s", running.ready_cpu_s)
                found = message_count(running, "restart", PARTITIONS)
            finally:
                running.server.stop()
            if found < written:
                raise BenchmarkError(f"{found} of {written} messages after a start ({how})")
        shutil.rmtree(data, ignore_errors=True)
    bench.done()


def _fill_and_kill(bench: Bench, data: Path, megabytes: int) -> int:
    """Write a log of a gigabyte and kill the broker with it; how many messages were acked."""
    from confluent_kafka.admin import AdminClient, NewTopic

    running = servers.start_moldau(bench.directory, name="restart", data_dir=data)
    try:
        admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("restart", PARTITIONS, 1)])["restart"].result(15)
        sample = bench.load(
            "fill.restart",
            "kafka-raw-produce",
            running,
            topic="restart",
            size=1024,
            # Whole batches are sent: a little more, so that no less than the size is written.
            count=(megabytes + 2) * 1_000_000 // 1024,
            partitions=PARTITIONS,
            batch_bytes=1_000_000,
        )
        return sample.messages
    finally:
        running.server.stop(signal.SIGKILL)


def disk_bytes(directory: Path) -> int:
    """What the files of a directory take up on the disk, holes left out."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def message_count(running: servers.Running, name: str, partitions: int) -> int:
    """How many messages a topic holds, by its offsets."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": running.bootstrap, "group.id": "count", "log_level": 0}
    )
    try:
        count = 0
        for partition in range(partitions):
            low, high = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=15)
            count += high - low
        return count
    finally:
        consumer.close()
