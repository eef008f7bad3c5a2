"""Compaction: what a core of the worker gets through, and what producers notice of it."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Bench, topic
from benchmarks.harness import BenchmarkError
from moldau.log.compaction.job import CompactionRequest
from moldau.log.compaction.swap import DiskCompaction
from moldau.log.compaction.worker import (
    HEAD_BYTES,
    CompactCommand,
    CompactionDone,
    decode_reply,
    frame,
    frame_bytes,
)
from moldau.log.disk_log import DiskLog, open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.model.ids import Epoch, Offset, TimestampMs
from moldau.records.batch import read_header
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch
from moldau.testing.logs import flush

STEPS = 3
VALUE_BYTES = 1024
RECORDS_PER_BATCH = 64
SEGMENT_BYTES = 64 << 20
CHECK_MS = 100
LONG_MS = 10**12
COMPACTED = "compacted"
WAIT_SECONDS_MAX = 120.0


def run(bench: Bench) -> None:
    for codec in (Codec.NONE, Codec.LZ4):
        _work(bench, codec)
    _beside_producers(bench)


# --- the worker alone ---


def _work(bench: Bench, codec: Codec) -> None:
    megabytes = bench.scale(1000, 150)
    name = "none" if codec is Codec.NONE else codec.config_name
    bench.step(f"compaction of {megabytes} MB, {name}")
    for _ in range(1 if bench.quick else bench.repetitions):
        root = bench.directory / "compaction"
        root.mkdir()
        log, payload_bytes = _filled(root, codec, megabytes)
        task = log.begin_compaction(
            CompactionRequest(
                now=TimestampMs(LONG_MS),
                end_offset=log.end_offset,
                replicated_offset=log.end_offset,
            )
        )
        if task is None:
            raise BenchmarkError("there is nothing to compact")
        cpu_s, wall_s = _clean(root, log, task)
        bench.record(f"compaction.{name}.core_mb_s", payload_bytes / 1e6 / cpu_s)
        bench.record(f"compaction.{name}.wall_mb_s", payload_bytes / 1e6 / wall_s)
        shutil.rmtree(root)
    bench.done()


def _filled(root: Path, codec: Codec, megabytes: int) -> tuple[DiskLog, int]:
    """A log in which every key stands twice, and what its closed segments hold uncompressed."""
    config = LogConfig(segment_bytes_max=SEGMENT_BYTES, compact=True, dirty_ratio_min=0.0)
    log = open_disk_log(OsFiles(root), "log", config)
    rng = random.Random(1)
    count = megabytes * 1_000_000 // VALUE_BYTES
    numbers = [*range(count // 2), *range(count // 2)]
    rng.shuffle(numbers)
    half = VALUE_BYTES // 2
    values = [rng.randbytes(half) + bytes(VALUE_BYTES - half) for _ in range(256)]
    for start in range(0, len(numbers), RECORDS_PER_BATCH):
        base = log.end_offset
        records = [
            Record(Offset(0), TimestampMs(1000), b"user-%012d" % number, values[number % 256], [])
            for number in numbers[start : start + RECORDS_PER_BATCH]
        ]
        data = build_batch(records, codec=codec, base_offset=base, leader_epoch=Epoch(1))
        log.append(data, [read_header(data)])
        if start % (RECORDS_PER_BATCH * 256) == 0:
            flush(log)
    flush(log)
    closed = log.segments[-1].base_offset
    return log, closed * VALUE_BYTES


def _clean(root: Path, log: DiskLog, task: DiskCompaction) -> tuple[float, float]:
    """CPU and wall time of the worker's process, its start included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "moldau.log.compaction.worker", str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise BenchmarkError("the worker has no pipes")
        process.stdin.write(frame(CompactCommand(task.job)))
        process.stdin.flush()
        answer = decode_reply(process.stdout.read(frame_bytes(process.stdout.read(HEAD_BYTES))))
        process.stdin.close()
    wall_s = time.monotonic() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not isinstance(answer, CompactionDone):
        raise BenchmarkError(f"the worker failed: {answer}")
    if not log.end_compaction(task, answer.result) or not answer.result.counts.records_dropped:
        raise BenchmarkError("the cleaning counted for nothing")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, wall_s


# --- beside producers ---


def _beside_producers(bench: Bench) -> None:
    bench.step("produce during compaction")
    settings = {"MOLDAU_LOG__COMPACTION_CHECK_MS": str(CHECK_MS)}
    spec = {
        "size": 1024,
        "count": bench.scale(300, 100) * 1_000_000 // 1024,
        "partitions": PARTITIONS,
        "batch_bytes": 1_000_000,
        "acks": -1,
    }
    for turn in range(bench.repetitions):
        with servers.moldau(bench.directory, name=f"compact{turn}", settings=settings) as moldau:
            _fill_topic(moldau, bench.scale(1000, 200))
            with topic(moldau) as name:
                before = bench.load(
                    "compaction.before", "kafka-produce", moldau, topic=name, **spec
                )
            data = bench.directory / f"compact{turn}-data"
            _let_go(moldau)
            with topic(moldau) as name:
                during = bench.load(
                    "compaction.during", "kafka-produce", moldau, topic=name, **spec
                )
            if _is_compacted(data):
                bench.note("DOUBTFUL: compaction ended before the load beside it did.")
            bench.record("compaction.produce_ratio", during.mb_per_s / before.mb_per_s)
    bench.done()


def _fill_topic(moldau: servers.Running, megabytes: int) -> None:
    """A compacted topic whose compaction waits."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": str(LONG_MS),
    }
    admin = AdminClient({"bootstrap.servers": moldau.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(COMPACTED, 1, 1, config=config)])[COMPACTED].result(30)
    producer = Producer({"bootstrap.servers": moldau.bootstrap, "linger.ms": 20, "log_level": 0})
    rng = random.Random(2)
    count = megabytes * 1_000_000 // VALUE_BYTES
    value = rng.randbytes(VALUE_BYTES)
    for number in range(count):
        while True:
            try:
                producer.produce(COMPACTED, value, b"user-%012d" % (number % (count // 2)))
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(WAIT_SECONDS_MAX):
        raise BenchmarkError("the compacted topic could not be filled")


def _let_go(moldau: servers.Running) -> None:
    """Let the compaction begin, and wait until it has."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": moldau.bootstrap, "log_level": 0})
    entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
    resource_named = ConfigResource(ResourceType.TOPIC, COMPACTED, incremental_configs=[entry])
    admin.incremental_alter_configs([resource_named])[resource_named].result(30)
    time.sleep(CHECK_MS / 1000 + 0.3)


def _is_compacted(data: Path) -> bool:
    return any((data / "topics" / COMPACTED).glob("*/0/cleaned"))
