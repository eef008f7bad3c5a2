"""The clusters that are measured: three brokers of ours, and what they cost together."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import BenchmarkError, cpu_seconds, rss_bytes
from moldau.testing.broker import BrokerFailedError
from moldau.testing.cluster import Cluster, ClusterBroker

BROKERS = 3
_SEGMENTS = re.compile(r"\bdata_segs_out:(\d+)")
_BYTES = re.compile(r"\bbytes_sent:(\d+)")


class Members:
    """All brokers of a cluster as one server: what they cost is added up."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name = name
        self._cluster = cluster

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(broker.pid) for broker in self._cluster.brokers)

    def rss_bytes(self) -> int:
        return sum(rss_bytes(broker.pid) for broker in self._cluster.brokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCluster:
    """A cluster that takes requests. `port` is that of broker 1."""

    cluster: Cluster
    server: Members

    @property
    def first(self) -> ClusterBroker:
        return self.cluster.brokers[1]

    @property
    def port(self) -> int:
        return self.first.port

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap


@contextlib.contextmanager
def cluster(
    directory: Path,
    *,
    flush: str = "never",
    name: str = "cluster",
    settings: Mapping[str, str] | None = None,
) -> Iterator[RunningCluster]:
    """Three brokers on this machine, gone afterwards with their data."""
    home = directory / name
    home.mkdir()
    found = Cluster(BROKERS, settings={"LOG__FLUSH": flush, **(settings or {})}, data_dir=home)
    try:
        with found:
            yield RunningCluster(cluster=found, server=Members(name, found))
    except BrokerFailedError as error:
        raise BenchmarkError(f"{name}: {error}") from error
    finally:
        shutil.rmtree(home, ignore_errors=True)


def leaders(running: RunningCluster, topic: str) -> dict[int, int]:
    """The leader of each partition, as any broker says; -1 where there is none."""
    for entry in running.cluster.topology()["topics"]:
        if entry["name"] == topic:
            return {part["partition"]: part["leader"] for part in entry["partitions"]}
    raise BenchmarkError(f"{topic} does not exist")


def await_leader(running: RunningCluster, topic: str, broker: int, seconds_max: float = 30) -> None:
    """Wait until one broker leads every partition of a topic: the preferred one does in the end."""
    deadline = time.perf_counter() + seconds_max
    while set(leaders(running, topic).values()) != {broker}:
        if time.perf_counter() > deadline:
            raise BenchmarkError(f"broker {broker} does not lead all of {topic}")
        time.sleep(0.1)


def await_spread(running: RunningCluster, topic: str, seconds_max: float = 40) -> None:
    """Wait until every broker leads its share of a topic."""
    deadline = time.perf_counter() + seconds_max
    while True:
        count = Counter(leaders(running, topic).values())
        if max(count.values()) - min(count[number] for number in (1, 2, 3)) <= 1:
            return
        if time.perf_counter() > deadline:
            raise BenchmarkError(f"the leaders of {topic} are not spread: {dict(count)}")
        time.sleep(0.1)


def sent_between(running: RunningCluster) -> tuple[int, int] | None:
    """Frames and bytes that brokers have sent each other so far; None if nobody can tell.

    As the kernel counts: every frame of an idle link is a segment of its own. The brokers' links
    are identified by the port that they go to.
    """
    if shutil.which("ss") is None:
        return None
    frames = size = 0
    for broker in running.cluster.brokers:
        command = ["ss", "-Htin", "state", "established", f"( dport = :{broker.raft_port} )"]
        reported = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        frames += sum(int(count) for count in _SEGMENTS.findall(reported.stdout))
        size += sum(int(count) for count in _BYTES.findall(reported.stdout))
    return frames, size
