"""Durability: what waiting for the disk costs, beside what the disk itself takes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic
from benchmarks.harness import median

STEPS = 2
SYNC_FILE_BYTES = 16 << 20
SYNC_RECORD = b"m" * 190


def run(bench: Bench) -> None:
    with (
        servers.moldau(bench.directory, flush="never", name="never") as never,
        servers.moldau(bench.directory, flush="always", name="always") as always,
    ):
        _throughput(bench, never, always)
        _lone_producer(bench, never, always)


def _throughput(bench: Bench, never: servers.Running, always: servers.Running) -> None:
    bench.step("flush=always beside flush=never")
    spec = {
        "size": 1024,
        "count": bench.scale(400, 100) * 1_000_000 // 1024,
        "partitions": PARTITIONS,
        "batch_bytes": 1_000_000,
        "acks": -1,
    }
    for _ in range(bench.repetitions):
        with topic(never) as name:
            fast = bench.load("flush.never", "kafka-produce", never, topic=name, **spec)
        with topic(always) as name:
            safe = bench.load("flush.always", "kafka-produce", always, topic=name, **spec)
        bench.record("flush.ratio", safe.mb_per_s / fast.mb_per_s)
    bench.done()


def _lone_producer(bench: Bench, never: servers.Running, always: servers.Running) -> None:
    bench.step("lone acks=all producer beside fdatasync")
    spec = {"size": 100, "count": bench.scale(2000, 500), "acks": -1}
    for _ in range(bench.repetitions):
        disk = fdatasync_p50_us(bench.directory, spec["count"])
        with topic(always, 1) as name:
            safe = bench.load("lone.always", "kafka-raw-latency", always, topic=name, **spec)
        with topic(never, 1) as name:
            bench.load("lone.never", "kafka-raw-latency", never, topic=name, **spec)
        bench.record("fdatasync.p50_us", disk)
        bench.record("lone.over_fdatasync_ms", (safe.detail["p50_us"] - disk) / 1e3)
    _doubt(bench)
    bench.done()


def _doubt(bench: Bench) -> None:
    """A broker that answers sooner than the disk is not waiting for it."""
    disk, safe, fast = (
        bench.value(metric) or 0.0
        for metric in ("fdatasync.p50_us", "lone.always.p50_us", "lone.never.p50_us")
    )
    if safe - fast < disk / 2:
        bench.note(
            f"DOUBTFUL: flush=always answers {safe - fast:.0f} µs later than flush=never, and an "
            f"fdatasync takes {disk:.0f} µs: does it wait for the disk?"
        )


def fdatasync_p50_us(directory: Path, count: int) -> float:
    """The median time of a small write and fdatasync in a file that was filled with zeros."""
    path = directory / "fdatasync"
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(number, bytes(SYNC_FILE_BYTES))
        os.fsync(number)
        times = []
        for turn in range(count):
            begun = time.perf_counter()
            os.pwrite(number, SYNC_RECORD, turn * len(SYNC_RECORD))
            os.fdatasync(number)
            times.append(time.perf_counter() - begun)
        return median(times) * 1e6
    finally:
        os.close(number)
        path.unlink()
