"""Owns one run of a scenario: brokers, network, load, the record of what was done, the verdict."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from faults.checker import Anomaly, Verdict, check, read_history
from faults.measures import unavailability
from faults.namespaces import Namespaces
from faults.nodes import Node, free_port
from faults.proxy import Link, Proxies
from faults.storage.volumes import Volume

ROOT: Final = Path(__file__).resolve().parent.parent
TOPIC: Final = "faults"
_CLIENT_SECONDS_MAX: Final = 150.0
_PROGRESS_SECONDS_MAX: Final = 60.0
_KAFKA_PORT: Final = 9092


class ScenarioError(Exception):
    """The scenario could not be carried out, so it shows nothing."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What a run showed."""

    verdict: Verdict = field(default_factory=Verdict)
    problems: list[str] = field(default_factory=list)
    """What was not as expected; empty for a run that passed."""
    proofs: list[str] = field(default_factory=list)
    """That the faults fired."""
    notes: list[str] = field(default_factory=list)
    unavailable_seconds: list[float] = field(default_factory=list)
    recoveries: list[tuple[int, float]] = field(default_factory=list)
    """Bytes in the data directory, and seconds from the start to ready."""
    faults: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the clients do meanwhile."""

    producers: int = 2
    consumers: int = 1
    partitions: int = 4
    rate: float = 300.0
    """Records per second of each producer."""
    record_bytes: int = 200
    topic_settings: tuple[str, ...] = ()
    expires: bool = False
    plain: bool = False
    """Without idempotence."""


class Run:
    """Use as a context: everything it started ends with it."""

    def __init__(self, home: Path, *, quick: bool = False, load: Load | None = None) -> None:
        self.home = home
        self.quick = quick
        self.load = load or Load()
        self.result = Result()
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.spaces: Namespaces | None = None
        self._stack = ExitStack()
        self._clients: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._histories: list[Path] = []
        self._own: Path = home / "faults.jsonl"
        self._counted: dict[Path, tuple[int, int]] = {}
        """Bytes looked at, and the acks in them."""
        self._reads = 0
        self._expected: set[Anomaly] = set()

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True)
        self._own.touch()
        self._histories.append(self._own)
        return self

    def __exit__(self, *error: object) -> None:
        for _, client in self._clients:
            if client.poll() is None:
                client.kill()
                client.wait()
        self._stack.close()

    # Set-up.

    def use(self, volume: Volume) -> None:
        """Close the volume after the brokers that are started from now on."""
        self._stack.callback(volume.close)

    def start_brokers(
        self,
        count: int = 1,
        *,
        data_dirs: list[Path] | None = None,
        settings: dict[str, str] | None = None,
        network: str = "direct",
        module: str = "moldau",
        environment: dict[str, str] | None = None,
        start: bool = True,
    ) -> None:
        """Start brokers, or only set them up, behind a network: direct, proxies, or namespaces."""
        if count != 1:
            raise ScenarioError("more than one broker needs a cluster")
        names = [f"b{number}" for number in range(1, count + 1)]
        if network == "namespaces":
            self.spaces = self._stack.enter_context(Namespaces([*names, "clients"]))
        proxies: Proxies | None = None
        if network == "proxies":
            proxies = Proxies(seed=1)
            self._stack.callback(proxies.close)
        for number, name in enumerate(names, 1):
            listen, advertised, prefix = f"127.0.0.1:{free_port()}", "", []
            if self.spaces is not None:
                listen = f"{self.spaces.addresses[name]}:{_KAFKA_PORT}"
                prefix = self.spaces.command(name)
            if proxies is not None:
                link = proxies.link(("127.0.0.1", int(listen.rpartition(":")[2])))
                self.links.append(link)
                advertised = link.address
            node = Node(
                number=number,
                data_dir=(data_dirs or [self.home / f"data{n + 1}" for n in range(count)])[
                    number - 1
                ],
                output=self.home / f"broker{number}.log",
                listen=listen,
                advertised=advertised,
                settings=settings,
                prefix=prefix,
                module=module,
                environment=environment,
            )
            self._stack.callback(node.close)
            if start:
                node.start()
            self.nodes.append(node)

    @property
    def broker(self) -> Node:
        return self.nodes[0]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.advertised for node in self.nodes)

    # Clients.

    def _command(self, role: str, name: str, *more: str) -> list[str]:
        load = self.load
        prefix = self.spaces.command("clients") if self.spaces is not None else []
        command = [*prefix, sys.executable, "-m", "faults.clients", role]
        command += ["--bootstrap", self.bootstrap, "--topic", TOPIC, "--name", name]
        command += ["--partitions", str(load.partitions), "--rate", str(load.rate)]
        command += ["--size", str(load.record_bytes), *more]
        if role != "create":
            history = self.home / f"{name}.jsonl"
            history.touch()
            if history not in self._histories:
                self._histories.append(history)
            command += ["--history", str(history)]
        if load.expires:
            command.append("--expires")
        if load.plain:
            command.append("--plain")
        return command

    def _run_client(self, role: str, name: str, *more: str) -> int:
        done = subprocess.run(
            self._command(role, name, *more),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=_CLIENT_SECONDS_MAX,
            check=False,
        )
        if done.stderr:
            raise ScenarioError(f"the client {name} failed:\n{done.stderr}")
        return done.returncode

    def create_topic(self) -> None:
        settings = [word for pair in self.load.topic_settings for word in ("--set", pair)]
        self._run_client("create", "admin", *settings)

    def start_load(self) -> None:
        """Make the topic, start the clients, and wait for the first acks."""
        self.create_topic()
        roles = [("produce", f"p{n}") for n in range(1, self.load.producers + 1)]
        roles += [("consume", f"c{n}") for n in range(1, self.load.consumers + 1)]
        for role, name in roles:
            client = subprocess.Popen(self._command(role, name), cwd=ROOT, stdin=subprocess.DEVNULL)
            self._clients.append((role, client))
        self.await_acks(1)

    def start_churn(self) -> None:
        """A client that makes and deletes topics and commits offsets; judged by stop_churn."""
        history = self.home / "x1.jsonl"
        self._histories.append(history)
        prefix = self.spaces.command("clients") if self.spaces is not None else []
        command = [*prefix, sys.executable, "-m", "faults.churn", "--bootstrap", self.bootstrap]
        command += ["--topic", TOPIC, "--name", "x1", "--history", str(history)]
        client = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
        self._clients.append(("churn", client))

    def stop_churn(self) -> None:
        self.stop_load("churn")
        for event in self.events():
            if event["op"] == "x-state":
                for text in event["contradictions"]:
                    self.problem(text)
                self.expect(event["answered"] > 0, "no change of topics was answered")
                self.note(
                    f"topics and commits: {event['answered']} answered, "
                    f"{event['unanswered']} without an answer, "
                    f"{len(event['contradictions'])} contradicted"
                )

    def stop_load(self, role: str = "") -> None:
        """Stop the clients of a role, or all: producers wait for their outcomes."""
        chosen = [client for kind, client in self._clients if role in ("", kind)]
        for client in chosen:
            client.terminate()
        for client in chosen:
            if client.wait(_CLIENT_SECONDS_MAX) != 0:
                raise ScenarioError("a client failed; its error is above")
        self._clients = [(kind, c) for kind, c in self._clients if c not in chosen]

    def acks(self) -> int:
        """Acks on record so far."""
        for path in self.home.glob("p*.jsonl"):
            done, count = self._counted.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(done)
                data = file.read()
            # The last line may be half written.
            whole = data.rfind(b"\n") + 1
            count += data.count(b'{"op":"ack"', 0, whole)
            self._counted[path] = (done + whole, count)
        return sum(count for _, count in self._counted.values())

    def await_acks(self, count: int, seconds_max: float = _PROGRESS_SECONDS_MAX) -> float:
        """Wait until that many more sends are acked; returns the seconds. Says so if they don't."""
        before, started = self.acks(), time.monotonic()
        while self.acks() < before + count:
            if time.monotonic() - started > seconds_max:
                self.problem(f"no {count} acks within {seconds_max:.0f} s")
                break
            time.sleep(0.05)
        return time.monotonic() - started

    def read_all(self, *, seconds_max: float = 60.0) -> bool:
        """Read every partition from start to end, on record; False if some could not be."""
        self._reads += 1
        code = self._run_client("read", f"r{self._reads}", "--seconds", str(seconds_max))
        return code == 0

    def record_bounds(self) -> None:
        self._run_client("bounds", "bounds", "--seconds", "20")

    # The record.

    def fault(self, name: str) -> int:
        """Put on record that a fault starts now; returns the time."""
        self.result.faults += 1
        now = time.monotonic_ns()
        with self._own.open("a") as file:
            file.write(json.dumps({"op": "x-fault", "at": now, "name": name}) + "\n")
        return now

    def proof(self, text: str) -> None:
        self.result.proofs.append(text)

    def note(self, text: str) -> None:
        self.result.notes.append(text)

    def problem(self, text: str) -> None:
        self.result.problems.append(text)

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problem(otherwise)

    def await_silence(self, seconds: float, seconds_max: float) -> None:
        """Wait until no acks come for some time. Says so if they go on."""
        deadline = time.monotonic() + seconds_max
        before, since = self.acks(), time.monotonic()
        while time.monotonic() - since < seconds:
            if time.monotonic() > deadline:
                self.problem(f"acks still come after {seconds_max:.0f} s")
                return
            time.sleep(0.1)
            if (now := self.acks()) != before:
                before, since = now, time.monotonic()

    def restart(self, node: Node) -> None:
        """Start a broker again, and keep how long that took for how much data."""
        size = node.data_bytes
        node.start()
        self.result.recoveries.append((size, node.start_seconds))

    @contextmanager
    def paused(self, node: Node) -> Iterator[None]:
        node.pause()
        try:
            yield
        finally:
            if node.alive():
                node.resume()

    def allow(self, *anomalies: Anomaly) -> None:
        """This scenario means to see these."""
        self._expected.update(anomalies)

    def acks_between(self, first: int, last: int) -> int:
        return sum(event["op"] == "ack" and first <= event["at"] <= last for event in self.events())

    def events(self) -> Iterator[dict[str, Any]]:
        return read_history(self._histories)

    def finish(self) -> Result:
        """Stop the load, read everything, and judge."""
        self.stop_load("produce")
        with suppress(subprocess.TimeoutExpired):
            self.expect(self.read_all(), "not every partition could be read to its end")
        self.stop_load()
        return self.judge()

    def judge(self) -> Result:
        result = self.result
        result.verdict = check(self.events())
        result.unavailable_seconds = unavailability(self.events())
        for anomaly, count in result.verdict.found.items():
            if anomaly not in self._expected:
                examples = "; ".join(result.verdict.examples[anomaly][:3])
                self.problem(f"{anomaly} ×{count}: {examples}")
        if not result.proofs:
            self.problem("no proof that the fault fired")
        if result.verdict.acked == 0:
            self.problem("nothing was acked, so nothing could be lost")
        return result
