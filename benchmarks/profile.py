"""`python -m benchmarks.profile`: where the broker's time goes under a load.

Two ways to look. `sample` (the default; needs py-spy) watches the unchanged broker from outside
and barely slows it; `trace` runs the broker under cProfile, which counts calls exactly but makes
small functions look dearer than they are.
"""

from __future__ import annotations

import argparse
import contextlib
import pstats
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks import servers
from benchmarks.bench import PARTITIONS, Target, topic
from benchmarks.cluster import await_leader, cluster
from benchmarks.harness import BenchmarkError, Sample, run_client, workspace

LOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "produce": ("kafka-produce", {"size": 1024, "megabytes": 1200, "batch_bytes": 16_384}),
    "produce-large": ("kafka-produce", {"size": 1024, "megabytes": 2000, "batch_bytes": 1_000_000}),
    "small": (
        "kafka-raw-small",
        {"size": 100, "megabytes": 20, "connections": 8, "in_flight": 5},
    ),
    "latency": ("kafka-raw-latency", {"size": 100, "megabytes": 3}),
    "fetch": ("kafka-raw-fetch", {"size": 1024, "megabytes": 2000}),
    "fetch-small": (
        "kafka-raw-fetch",
        {"size": 1024, "megabytes": 600, "bytes_max": 65_536, "partition_bytes_max": 65_536},
    ),
}
SAMPLES_PER_S = 250
EVENT_LOOP_THREAD = "MainThread"


def _spec(load: dict[str, Any], running: Target, name: str) -> dict[str, Any]:
    return {
        "port": running.port,
        "bootstrap": running.bootstrap,
        "topic": name,
        "partitions": PARTITIONS,
        "acks": 1,
        "count": load["megabytes"] * 1_000_000 // load["size"],
        **load,
    }


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    yield


def _run_load(
    which: str, running: servers.Running, watch: Callable[[], AbstractContextManager[None]]
) -> Sample:
    """Run a load under `watch`; what a fetch reads is written before that."""
    kind, load = LOADS[which]
    with topic(running) as name:
        spec = _spec(load, running, name)
        if kind == "kafka-raw-fetch":
            run_client("kafka-raw-produce", {**spec, "batch_bytes": 1_000_000}, running.server)
        with watch():
            return run_client(kind, spec, running.server)


def _print_head(which: str, sample: Sample) -> None:
    print(
        f"\n== {which}: {sample.mb_per_s:.0f} MB/s, {sample.messages_per_s:,.0f} msg/s, "
        f"broker {sample.cpu_ms_per_mb:.2f} ms/MB, {sample.cpu_us_per_message:.2f} µs/msg, "
        f"{sample.server_cpu_s / sample.wall_s:.2f} cores"
    )


def sample_load(which: str, directory: Path, flush: str, native: bool, lines: int) -> None:
    """Watch the broker with py-spy; print functions by their own time and by all beneath them."""
    output = directory / "stacks"
    with servers.moldau(directory, flush=flush) as running:
        command = _spy(running.server.pid, output, native)
        sample = _run_load(which, running, lambda: _watched(command))
    if not output.exists():
        raise BenchmarkError("py-spy wrote nothing; it may need the right to trace processes")
    _print_head(which, sample)
    _print_stacks(output.read_text(), lines)


def _spy(pid: int, output: Path, native: bool) -> list[str]:
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if spy is None:
        raise BenchmarkError("py-spy is not installed (pip install py-spy), or use --tool trace")
    command = [spy, "record", "--pid", str(pid), "--rate", str(SAMPLES_PER_S)]
    command += ["--format", "raw", "--output", str(output), "--duration", "60", "--threads"]
    # Stopping the broker for every sample would halve its rate; a torn stack is dropped.
    return [*command, "--native"] if native else [*command, "--nonblocking"]


def sample_cluster(which: str, directory: Path, flush: str, native: bool, lines: int) -> None:
    """Three brokers with acks=all, one of which leads everything: watch it, and a follower."""
    kind, load = LOADS[which]
    with (
        cluster(directory, flush=flush) as running,
        topic(running, led_by=[1, 2, 3]) as name,
    ):
        await_leader(running, name, 1)
        spec = {**_spec(load, running, name), "acks": -1}
        if kind == "kafka-raw-fetch":
            run_client("kafka-raw-produce", {**spec, "batch_bytes": 1_000_000}, running.server)
        outputs = {role: directory / role for role in ("leader", "follower")}
        with contextlib.ExitStack() as watching:
            for broker, output in zip((1, 2), outputs.values(), strict=True):
                pid = running.cluster.brokers[broker].pid
                watching.enter_context(_watched(_spy(pid, output, native)))
            sample = run_client(kind, spec, running.server)
    _print_head(f"{which}, three brokers", sample)
    for role, output in outputs.items():
        print(f"\n-- {role}")
        _print_stacks(output.read_text(), lines)


@contextlib.contextmanager
def _watched(command: list[str]) -> Iterator[None]:
    watcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # The watcher reads the symbols of the broker first.
        time.sleep(1.0)
        yield
        watcher.send_signal(signal.SIGINT)
        watcher.wait(30)
    finally:
        if watcher.poll() is None:
            watcher.kill()
            watcher.wait(10)


def _print_stacks(text: str, lines: int) -> None:
    own: Counter[str] = Counter()
    beneath: Counter[str] = Counter()
    total = 0
    for line in text.splitlines():
        stack, _, count_text = line.rpartition(" ")
        thread, *calls = stack.split(";")
        # Flush threads wait most of the time, and a waiting thread is sampled like a busy one.
        if not thread.endswith(EVENT_LOOP_THREAD) or not calls:
            continue
        count = int(count_text)
        total += count
        frames = [_function(call) for call in calls]
        own[frames[-1]] += count
        for frame in set(frames):
            beneath[frame] += count
    if not total:
        raise BenchmarkError("no samples: the load was too short or the broker idle")
    print(f"{total} samples of the event loop's thread\n  own    all  function")
    for frame, count in own.most_common(lines):
        print(f"{count / total:5.1%} {beneath[frame] / total:6.1%}  {frame}")
    print("  all    own  function")
    # What holds the whole program and does nothing itself says nothing.
    shown = {
        frame: count
        for frame, count in beneath.most_common()
        if count < 0.95 * total or own[frame] > 0.01 * total
    }
    for frame, count in list(shown.items())[:lines]:
        print(f"{count / total:5.1%} {own[frame] / total:6.1%}  {frame}")


def _function(frame: str) -> str:
    """`name (path/to/file.py:12)` without the line: time is added up by function."""
    name, _, place = frame.partition(" (")
    file = place.rstrip(")").rsplit(":", 1)[0]
    return f"{name} ({file})" if file else name


def trace_load(which: str, directory: Path, flush: str, lines: int) -> None:
    """Run the broker under cProfile until it has stopped; print functions by their own time."""
    output = directory / "trace"
    launcher = [sys.executable, "-m", "cProfile", "-o", str(output), "-m", "moldau"]
    running = servers.start_moldau(directory, flush=flush, launcher=launcher)
    try:
        sample = _run_load(which, running, _unwatched)
    finally:
        running.server.stop()
    if not output.exists():
        raise BenchmarkError("the broker left no profile: it did not stop cleanly")
    _print_head(which, sample)
    stats = pstats.Stats(str(output))
    stats.sort_stats("tottime").print_stats(lines)
    stats.sort_stats("cumulative").print_stats(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"of {', '.join(LOADS)}")
    parser.add_argument("--tool", choices=("sample", "trace"), default="sample")
    parser.add_argument("--flush", choices=("never", "always"), default="never")
    parser.add_argument("--native", action="store_true", help="sample C functions too (py-spy)")
    parser.add_argument(
        "--brokers", type=int, choices=(1, 3), default=1, help="1, or 3 with acks=all"
    )
    parser.add_argument("--lines", type=int, default=30, help="functions to print")
    options = parser.parse_args()
    if options.brokers > 1 and options.tool == "trace":
        parser.error("three brokers can only be sampled")
    unknown = [which for which in options.loads if which not in LOADS]
    if unknown:
        parser.error(f"no such load: {', '.join(unknown)}; there are {', '.join(LOADS)}")
    for which in options.loads or ("produce", "small", "fetch"):
        with workspace() as directory:
            try:
                if options.tool == "sample":
                    watch = sample_load if options.brokers == 1 else sample_cluster
                    watch(which, directory, options.flush, options.native, options.lines)
                else:
                    trace_load(which, directory, options.flush, options.lines)
            except BenchmarkError as error:
                print(f"error: {which}: {error}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
