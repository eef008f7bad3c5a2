"""Apache Kafka as a peer: fetched by Maven once, started as one node or as three, in KRaft mode.

Nothing of it is part of the product or of its tests: where there is no Java, no Maven or no way to
Maven's repository, a run says so in one line and goes on without it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT, BenchmarkError, Server, free_port
from benchmarks.servers import kafka_answers
from moldau.spark.java import JavaError, find_java

CACHE = ROOT / "build" / "apache-kafka"
"""One folder of jars per version, which git ignores."""
WANTED = "4.3.1"
"""The version that is compared; where it cannot be had, the newest of 4."""
NEWEST = "[4.0,5.0)"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies"
FETCH_SECONDS_MAX = 300.0
START_SECONDS_MAX = 60.0
BROKERS = 3
FLUSHES = ("never", "always")

# As bin/kafka-run-class.sh of Kafka's distribution starts a broker. Its heap is 1 GB by default.
JVM = (
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_VERSION = re.compile(r"kafka_2\.13-(\d[\w.]*)\.jar")


class UnavailableError(Exception):
    """Apache Kafka cannot be measured here; the text says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Jars of one version, and the Java that runs them."""

    folder: Path
    version: str
    java: Path
    java_version: str

    def command(self, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        return [str(self.java), *options, "-cp", f"{self.folder}/*", main, *arguments]


def distribution(cache: Path = CACHE) -> Distribution:
    """What is in the cache, or is fetched into it. Raises UnavailableError."""
    try:
        java = find_java()
    except JavaError:
        raise UnavailableError("there is no Java 17 or newer") from None
    folder = cached(cache) or fetch(cache, java.home)
    version = version_in(folder)
    if version is None:
        raise UnavailableError(f"there is no jar of Kafka in {folder}; remove this folder")
    return Distribution(
        folder=folder,
        version=version,
        java=java.home / "bin" / "java",
        java_version=java_version(java.build),
    )


def java_version(build: str) -> str:
    """The version in what `java -version` prints."""
    found = re.search(r'version "([^"]+)"', build)
    return found[1] if found else "unknown"


def version_in(folder: Path) -> str | None:
    found = [match[1] for path in folder.glob("*.jar") if (match := _VERSION.fullmatch(path.name))]
    return found[0] if found else None


def cached(cache: Path) -> Path | None:
    """The wanted version, or else any that was fetched when the wanted one was not there."""
    folders = sorted(cache.glob("4.*"), key=lambda one: one.name == WANTED)
    return folders[-1] if folders else None


def fetch(cache: Path, java_home: Path) -> Path:
    """Let Maven copy Kafka and its dependencies (44 MB) to a folder, complete or not at all."""
    maven = shutil.which("mvn")
    if maven is None:
        raise UnavailableError("there is no Maven (mvn)")
    cache.mkdir(parents=True, exist_ok=True)
    log = cache / "maven.log"
    for wanted in (WANTED, NEWEST):
        with tempfile.TemporaryDirectory(dir=cache) as work:
            project = Path(work)
            (project / "pom.xml").write_text(pom(wanted))
            if not _run_maven(maven, project, java_home, log):
                continue
            version = version_in(project / "jars")
            if version is not None:
                return (project / "jars").rename(cache / version)
    raise UnavailableError(f"Maven cannot fetch it, see {log.relative_to(cache.parent.parent)}")


def _run_maven(maven: str, project: Path, java_home: Path, log: Path) -> bool:
    command = [maven, "-q", "-B", PLUGIN, "-DincludeScope=runtime"]
    command.append(f"-DoutputDirectory={project / 'jars'}")
    with open(log, "ab") as output:
        try:
            done = subprocess.run(
                command,
                cwd=project,
                env={**os.environ, "JAVA_HOME": str(java_home)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=FETCH_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def pom(version: str) -> str:
    """A project with nothing but dependencies. slf4j-simple prints warnings of the broker."""
    artifacts = (
        ("org.apache.kafka", "kafka_2.13", version),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    )
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{number}</version></dependency>"
        for group, name, number in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>benchmarks</groupId><artifactId>peer</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )


# --- configuration --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    kafka: int
    controller: int


def properties(node: int, ports: Sequence[Ports], data: Path, flush: str) -> dict[str, str]:
    """The server.properties of a node, 1 for the first: Kafka's defaults, and what is said here.

    `never` is Kafka's default: what is flushed when is left to the system. `always` flushes after
    each message, before the reply, as our `flush=always` does.
    """
    own = ports[node - 1]
    brokers = len(ports)
    found = {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(
            f"{number}@127.0.0.1:{each.controller}" for number, each in enumerate(ports, 1)
        ),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{own.kafka},CONTROLLER://127.0.0.1:{own.controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{own.kafka}",
        "log.dirs": str(data),
        # A topic of replication factor 3 is written with a majority, as ours is.
        "min.insync.replicas": str(brokers // 2 + 1),
        "offsets.topic.replication.factor": str(brokers),
        "transaction.state.log.replication.factor": str(brokers),
        "transaction.state.log.min.isr": str(brokers // 2 + 1),
        # The files of a deleted topic would stay for a minute, and fill the disk of the run.
        "log.segment.delete.delay.ms": "1000",
        "auto.create.topics.enable": "false",
    }
    if flush == "always":
        found["log.flush.interval.messages"] = "1"
    elif flush != "never":
        raise ValueError(f"{flush} is not one of {FLUSHES}")
    return found


def cluster_id() -> str:
    """Kafka's form of an UUID: 22 characters of base64."""
    found = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    # It would be taken for an option on a command line.
    return cluster_id() if found.startswith("-") else found


# --- processes ------------------------------------------------------------------------------------


class Nodes:
    """All nodes as one server: what they cost is added up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: list[Server] = []

    def cpu_seconds(self) -> float:
        return sum(member.cpu_seconds() for member in self.members)

    def rss_bytes(self) -> int:
        return sum(member.rss_bytes() for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningKafka:
    """One node or several that take requests. `port` is that of node 1."""

    server: Nodes
    ports: list[Ports]
    data_dirs: list[Path]

    @property
    def port(self) -> int:
        return self.ports[0].kafka

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{each.kafka}" for each in self.ports)


@contextlib.contextmanager
def kafka(
    found: Distribution, directory: Path, *, flush: str = "never", brokers: int = 1
) -> Iterator[RunningKafka]:
    """Kafka on loopback with its data in `directory`; ended and gone afterwards."""
    name = f"kafka-{brokers}-{flush}"
    home = directory / name
    home.mkdir()
    ports = [Ports(kafka=free_port(), controller=free_port()) for _ in range(brokers)]
    dirs = [home / f"data{node}" for node in range(1, brokers + 1)]
    nodes = Nodes(name)
    try:
        identity = cluster_id()
        for node, data in enumerate(dirs, 1):
            config = home / f"node{node}.properties"
            lines = properties(node, ports, data, flush)
            config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
            _format(found, config, identity)
            command = found.command("kafka.Kafka", str(config), options=JVM)
            nodes.members.append(Server(f"{name}-node{node}", command, directory=home))
        for member, own in zip(nodes.members, ports, strict=True):
            ready = functools.partial(kafka_answers, own.kafka)
            member.wait_for(ready, seconds_max=START_SECONDS_MAX, interval_s=0.1)
        yield RunningKafka(server=nodes, ports=ports, data_dirs=dirs)
    finally:
        # Its data goes anyway, and the last nodes of a cluster would wait for a majority.
        for member in nodes.members:
            member.stop(signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


def _format(found: Distribution, config: Path, identity: str) -> None:
    command = found.command("kafka.tools.StorageTool", "format", "-t", identity, "-c", str(config))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=START_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-1000:]
        raise BenchmarkError(f"Kafka's StorageTool failed:\n{said}")
