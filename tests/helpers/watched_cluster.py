"""A cluster with clients of all kinds, whose faults can be staged, scraped by a real Prometheus.

Broker 1 has a clock that can be set, broker 2 a disk whose flushes can be made slow, and broker 3
one that can be filled; a fourth broker, a cluster of its own, has TLS and users.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from cluster_load import QUEUE, TOPIC, Load
from prometheus_server import Alert, PrometheusServer

from faults.clock import CLOCK_VARIABLE
from faults.storage.injected import FLAG_VARIABLE, TRACE_VARIABLE
from faults.storage.volumes import FullVolume, cannot_mount
from moldau import QueueClient
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

JOB: Final = "moldau"
TLS_JOB: Final = "moldau-tls"
DAYS_LEFT: Final = {"long": 300, "short": 5}
_RESERVE_BYTES: Final = "1000000"
_VOLUME_MEGABYTES: Final = 256


class Watched:
    """What the tests work with."""

    def __init__(self, home: Path) -> None:
        self.clock = home / "clock"
        """Holds the seconds by which broker 1 is off, if it exists."""
        self.flushes = home / "flushes"
        """Holds the seconds that a flush of broker 2 takes longer, if it exists."""
        self._certificates = home / "certificates"
        self._exits = ExitStack()
        self.cluster = self._cluster(home)
        self.disk = self._disk(home)
        self.load: Load
        self.prometheus: PrometheusServer

    def _cluster(self, home: Path) -> Cluster:
        settings = {"LOG__DISK_RESERVE_BYTES": _RESERVE_BYTES}
        cluster = Cluster(data_dir=home / "cluster", settings=settings)
        cluster.brokers[1].module = "faults.clock"
        cluster.brokers[2].module = "faults.storage.injected"
        return cluster

    def _disk(self, home: Path) -> FullVolume | None:
        """A disk that nobody else fills; None where none can be mounted."""
        if cannot_mount(home):
            return None
        volume = self._exits.enter_context(FullVolume(home / "disk", megabytes=_VOLUME_MEGABYTES))
        self.cluster.brokers[3].data_dir = volume.path / "data"
        return volume

    @contextmanager
    def running(self, rules: str) -> Iterator["Watched"]:
        with self._exits as exits, pytest.MonkeyPatch.context() as patch:
            patch.setenv(CLOCK_VARIABLE, str(self.clock))
            patch.setenv(FLAG_VARIABLE, str(self.flushes))
            patch.setenv(TRACE_VARIABLE, f"{self.flushes}.trace")
            self.cluster.data_dir.mkdir()
            exits.enter_context(self.cluster)
            tls = exits.enter_context(self._tls_broker())
            self.tls_instance = tls.http_address
            self._create_topics()
            self.prometheus = exits.enter_context(
                PrometheusServer(
                    self.cluster.data_dir.parent / "prometheus",
                    jobs={JOB: self.instances, TLS_JOB: [tls.http_address]},
                    rules=rules,
                )
            )
            self.load = Load(self.cluster, tls.http_address)
            exits.callback(self.load.stop)
            self.load.start()
            yield self

    def _create_topics(self) -> None:
        with QueueClient(self.cluster.brokers[1].grpc_address) as client:
            client.create_topic(TOPIC, partitions=3)
            client.create_topic(QUEUE, partitions=2)

    def _tls_broker(self) -> Broker:
        for name, days in DAYS_LEFT.items():
            command = ["certs", "dev", str(self._certificates / name), "--days", str(days)]
            subprocess.run([sys.executable, "-m", "moldau", *command], check=True, timeout=60)
        self.use_certificate("long")
        settings = {
            "KAFKA__SECURITY": "tls",
            "SECURITY__CERT_FILE": str(self._certificates / "broker.pem"),
            "HTTP__AUTHENTICATION": "users",
            "HTTP__PUBLIC_METRICS": "true",
            "SECURITY__KEY_FILE": str(self._certificates / "broker.key"),
            "LOG__DISK_RESERVE_BYTES": _RESERVE_BYTES,
        }
        return Broker(data_dir=self.cluster.data_dir / "tls", settings=settings)

    @property
    def instances(self) -> list[str]:
        return [broker.http_address for broker in self.cluster.brokers]

    def use_certificate(self, name: str) -> None:
        for file in ("broker.key", "broker.pem"):
            shutil.copy(self._certificates / name / file, self._certificates / file)

    @property
    def certificate(self) -> str:
        """As the metric names it."""
        return str(self._certificates / "broker.pem")

    def kill_a_follower(self) -> int:
        """A broker that is not the controller; returns its number."""
        controller = self.cluster.topology()["controller"]
        number = next(each for each in (3, 2) if each != controller)
        self.cluster.brokers[number].kill()
        return number

    def fires(self, *alerts: Alert, before: Iterable[Alert] = ()) -> None:
        """Wait until all of these have fired; none but these, and those that did before, may."""
        allowed, missing = {*alerts, *before}, set(alerts)

        def all_have() -> bool:
            firing = self.prometheus.firing()
            assert firing <= allowed, self._unexpected(firing - allowed)
            missing.difference_update(firing)
            return not missing

        wait_until(all_have, "the alerts fire", describe=lambda: f"missing: {missing}")

    def clears(self, *alerts: Alert) -> None:
        """Wait until none of these fires any more, nor any other."""

        def none_fires() -> bool:
            firing = self.prometheus.firing()
            assert firing <= set(alerts), self._unexpected(firing - set(alerts))
            return not firing

        wait_until(none_fires, "no alert fires", describe=self.prometheus.firing)

    def _unexpected(self, alerts: set[Alert]) -> str:
        """What a reader of a failed test needs to find the reason."""
        running = [broker.is_running for broker in self.cluster.brokers]
        failed = self.prometheus.failed_scrapes()
        return f"{alerts} of {self.instances}, of which run: {running}; failed scrapes: {failed}"

    def mend(self) -> None:
        """Undo all staged faults."""
        self.clock.unlink(missing_ok=True)
        self.flushes.unlink(missing_ok=True)
        if self.disk is not None:
            self.disk.relieve()
        self.use_certificate("long")
        self.load.mend()
        for broker in self.cluster.brokers:
            if not broker.is_running:
                broker.start()
