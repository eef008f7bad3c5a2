"""Starts the servers that are compared: ours, librdkafka's mock, and what else is installed.

All of them on loopback, on ports taken free, with their data in the run's temporary directory, and
as their packages configure them, except for what is said here: persistence to disk is on in each.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.clients import frames
from benchmarks.harness import BenchmarkError, Server, environment, free_port, port_answers

RABBITMQ_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
READY_LINE = re.compile(r"\bready\b.*127\.0\.0\.1:\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that takes requests. `ready_s` and `ready_cpu_s` are counted from its start."""

    server: Server
    port: int
    ready_s: float = 0.0
    ready_cpu_s: float = 0.0
    properties: dict[str, str] = field(default_factory=dict)
    """What Kafka clients need to connect, besides the address."""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


def kafka_answers(port: int) -> bool:
    """Whether a Kafka broker answers ApiVersions there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as sock:
            sock.sendall(frames.api_versions())
            head = sock.recv(4)
            return len(head) == 4 and struct.unpack(">i", head)[0] > 4
    except OSError:
        return False


def start_moldau(
    directory: Path,
    *,
    flush: str = "never",
    name: str = "moldau",
    launcher: list[str] | None = None,
    data_dir: Path | None = None,
    settings: dict[str, str] | None = None,
    properties: dict[str, str] | None = None,
) -> Running:
    """Start our broker and wait for its ready line, and then for an answer on its port."""
    port = free_port()
    server = Server(
        name,
        [
            *(launcher or [sys.executable, "-m", "moldau"]),
            "broker",
            "start",
            "--id",
            "1",
            "--kafka-addr",
            f"127.0.0.1:{port}",
            "--data-dir",
            str(data_dir or directory / f"{name}-data"),
            # Ignored by a broker that has data already.
            "--bootstrap",
        ],
        directory=directory,
        env={
            "MOLDAU_LOG__FLUSH": flush,
            # Two of them may run side by side, and nobody asks for these.
            "MOLDAU_RAFT__ADDR": "127.0.0.1:0",
            "MOLDAU_HTTP__ADDR": "127.0.0.1:0",
            "MOLDAU_GRPC__ADDR": "127.0.0.1:0",
            "NO_COLOR": "1",
            **(settings or {}),
        },
    )
    try:
        ready_s = server.wait_for(
            lambda: READY_LINE.search(server.output()) is not None, interval_s=0.001
        )
        cpu_s = server.cpu_seconds()
        if not properties:
            server.wait_for(lambda: kafka_answers(port))
    except BenchmarkError:
        server.stop(signal.SIGKILL)
        raise
    return Running(
        server=server,
        port=port,
        ready_s=ready_s,
        ready_cpu_s=cpu_s,
        properties=properties or {},
    )


@contextlib.contextmanager
def moldau_with_tls(directory: Path, *, flush: str = "never") -> Iterator[Running]:
    """Our broker with TLS, and certificates that `moldau certs dev` makes."""
    certs = directory / "certs"
    command = [sys.executable, "-m", "moldau", "certs", "dev", str(certs)]
    subprocess.run(command, check=True, env=environment(), capture_output=True)
    settings = {
        "MOLDAU_KAFKA__SECURITY": "tls",
        "MOLDAU_SECURITY__CERT_FILE": str(certs / "broker.pem"),
        "MOLDAU_SECURITY__KEY_FILE": str(certs / "broker.key"),
    }
    properties = {"security.protocol": "SSL", "ssl.ca.location": str(certs / "ca.pem")}
    with moldau(
        directory, flush=flush, name="moldau-tls", settings=settings, properties=properties
    ) as running:
        yield running


@contextlib.contextmanager
def moldau(
    directory: Path,
    *,
    flush: str = "never",
    name: str = "moldau",
    settings: dict[str, str] | None = None,
    properties: dict[str, str] | None = None,
) -> Iterator[Running]:
    running = start_moldau(
        directory, flush=flush, name=name, settings=settings, properties=properties
    )
    try:
        yield running
    finally:
        running.server.stop()
        shutil.rmtree(directory / f"{name}-data", ignore_errors=True)


@contextlib.contextmanager
def mock_cluster(directory: Path, partitions: int) -> Iterator[Running]:
    server = Server(
        "mock",
        [sys.executable, "-m", "benchmarks.rdkafka", str(partitions)],
        directory=directory,
        stdin=subprocess.PIPE,
    )
    with server:
        server.wait_for(lambda: "\n" in server.output())
        port = int(server.output().split()[0].rsplit(":", 1)[1])
        yield Running(server=server, port=port)


@contextlib.contextmanager
def redis(directory: Path, fsync: str) -> Iterator[Running]:
    """Redis with an append-only file; `fsync` is everysec or always; no snapshots, no rewrite."""
    port = free_port()
    data = directory / f"redis-{fsync}"
    data.mkdir()
    command = f"redis-server --bind 127.0.0.1 --port {port} --dir {data} --appendonly yes"
    command += f" --appendfsync {fsync} --auto-aof-rewrite-percentage 0"
    with Server(f"redis-{fsync}", [*command.split(), "--save", ""], directory=directory) as server:
        server.wait_for(lambda: port_answers(port))
        yield Running(server=server, port=port)
    shutil.rmtree(data, ignore_errors=True)


@contextlib.contextmanager
def nats(directory: Path) -> Iterator[Running]:
    """JetStream with file storage; this version syncs every two minutes and has no other choice."""
    port = free_port()
    data = directory / "nats"
    config = directory / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\n'
        f'jetstream {{ store_dir: "{data}", max_mem: 1G, max_file: 20G }}\n'
    )
    command = ["nats-server", "-c", str(config)]
    with Server("nats", command, directory=directory) as server:
        server.wait_for(lambda: "Server is ready" in server.output())
        yield Running(server=server, port=port)
    shutil.rmtree(data, ignore_errors=True)


@contextlib.contextmanager
def rabbitmq(directory: Path, kind: str) -> Iterator[Running]:
    """One RabbitMQ node for `kind`: streams, never synced, or quorum queues, always synced."""
    home = directory / f"rabbitmq-{kind}"
    home.mkdir()
    amqp_port, stream_port, epmd_port, dist_port = (free_port() for _ in range(4))
    (home / "enabled_plugins").write_text("[rabbitmq_stream].\n")
    (home / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{amqp_port}\n"
        f"stream.listeners.tcp.1 = 127.0.0.1:{stream_port}\n"
        "log.file = false\nlog.console = true\nlog.console.level = warning\n"
    )
    env = {
        "HOME": str(home),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_PID_FILE": str(home / "pid"),
    }
    port = stream_port if kind == "stream" else amqp_port
    # The node would start a port mapper that outlives it; this one is ended with the rest.
    mapper = Server(f"epmd-{kind}", ["epmd", "-port", str(epmd_port)], directory=directory, env=env)
    with mapper:
        mapper.wait_for(lambda: port_answers(epmd_port))
        with Server(home.name, [str(RABBITMQ_SERVER)], directory=directory, env=env) as server:
            server.wait_for(lambda: port_answers(stream_port), seconds_max=60)
            # The listener opens a moment before the node has finished starting.
            time.sleep(2)
            yield Running(server=server, port=port)
    shutil.rmtree(home, ignore_errors=True)


def missing(system: str) -> str | None:
    """Why a system cannot be measured here, or None."""
    needed = {"redis": "redis-server", "nats": "nats-server", "rabbitmq": "epmd"}
    package = {"rabbitmq": "rabbitmq-server"}
    family = system.split("-", 1)[0]
    there = shutil.which(needed[family]) is not None
    if family == "rabbitmq":
        there = there and os.access(RABBITMQ_SERVER, os.X_OK)
    return None if there else f"{package.get(family, needed[family])} is not installed"
