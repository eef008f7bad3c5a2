"""Owns one run of a scenario: brokers, network, load, the record of what was done, the verdict."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from faults.checker import Anomaly, Verdict, check, read_history
from faults.cluster import Cluster
from faults.measures import unavailability
from faults.namespaces import Namespaces
from faults.network import CLIENTS, Network, ProxyNetwork, SpaceNetwork, make_network
from faults.nodes import Node
from faults.proxy import Link
from faults.replicas import compare
from faults.storage.volumes import Volume

ROOT: Final = Path(__file__).resolve().parent.parent
TOPIC: Final = "faults"
_CLIENT_SECONDS_MAX: Final = 120.0
_PROGRESS_SECONDS_MAX: Final = 60.0
_SAME_SECONDS_MAX: Final = 30.0


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
    members: int = 0
    """Of a consumer group that commits."""
    raw: bool = False
    """With a reader that looks at every reply."""
    partitions: int = 4
    replication: int = 1
    rate: float = 300.0
    """Records per second of each producer."""
    record_bytes: int = 200
    topic_settings: tuple[str, ...] = ()
    expires: bool = False
    plain: bool = False
    """Without idempotence."""
    acks: str = "all"


class Run:
    """Use as a context: everything it started ends with it."""

    def __init__(
        self, home: Path, *, quick: bool = False, load: Load | None = None, seed: int = 1
    ) -> None:
        self.home = home
        self.quick = quick
        self.seed = seed
        self.load = load or Load()
        self.result = Result()
        self.nodes: list[Node] = []
        self.network = Network()
        self.cluster = Cluster(self.nodes, self.network, TOPIC)
        self._settings: dict[str, str] = {}
        self._stack = ExitStack()
        self._clients: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._histories: list[Path] = []
        self._own: Path = home / "faults.jsonl"
        self._counted: dict[Path, int] = {}
        """Bytes looked at."""
        self._acks: Counter[int] = Counter()
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
        others: tuple[str, ...] = (),
        module: str = "moldau",
        environments: dict[int, dict[str, str]] | None = None,
        start: bool = True,
    ) -> None:
        """Start brokers, or only set them up, behind a network: direct, proxies, or namespaces.

        The first founds a cluster, the others join it. `environments` are those of `module`, by
        the number of the broker; without one a broker is a plain one.
        """
        self.network = make_network(network, count, others)
        self._stack.callback(self.network.close)
        self.cluster = Cluster(self.nodes, self.network, TOPIC)
        self._settings = settings or {}
        for index in range(count):
            environment = (environments or {}).get(index + 1)
            node = self.add_node(
                data_dir=data_dirs[index] if data_dirs else None,
                module=module if environment is not None else "moldau",
                environment=environment,
            )
            if start and index == 0:
                self.start(node)
        if start:
            self.start(*self.nodes[1:])

    def add_node(
        self,
        *,
        data_dir: Path | None = None,
        module: str = "moldau",
        environment: dict[str, str] | None = None,
    ) -> Node:
        """Set a further broker up, which joins through the first one unless it is told another."""
        number = len(self.nodes) + 1
        place = self.network.place(number)
        node = Node(
            number=number,
            data_dir=data_dir or self.home / f"data{number}",
            output=self.home / f"broker{number}.log",
            listen=place.kafka,
            advertised=place.kafka_advertised,
            raft=place.raft,
            raft_advertised=place.raft_advertised,
            http=place.http,
            join=self.nodes[0].http if self.nodes else "",
            settings=self._settings,
            prefix=list(place.prefix),
            module=module,
            environment=environment,
        )
        self._stack.callback(node.close)
        self.nodes.append(node)
        return node

    def launch(self, *nodes: Node) -> None:
        for node in nodes:
            node.launch()
            self.network.pids[node.number] = node.pid

    def start(self, *nodes: Node) -> None:
        """Start some brokers together, and wait until they serve."""
        self.launch(*nodes)
        for node in nodes:
            node.await_ready()

    @property
    def links(self) -> list[Link]:
        """From the clients to each broker, where there are proxies."""
        return list(self.network.clients.values()) if isinstance(self.network, ProxyNetwork) else []

    @property
    def peer_links(self) -> list[Link]:
        """Between brokers, where there are proxies."""
        return list(self.network.peers.values()) if isinstance(self.network, ProxyNetwork) else []

    @property
    def spaces(self) -> Namespaces | None:
        return self.network.spaces if isinstance(self.network, SpaceNetwork) else None

    @property
    def broker(self) -> Node:
        return self.nodes[0]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.advertised for node in self.nodes)

    # Clients.

    def _command(
        self, role: str, name: str, *more: str, where: str = CLIENTS, bootstrap: str = ""
    ) -> list[str]:
        load = self.load
        command = [*self.network.command(where), sys.executable, "-m", "faults.clients", role]
        command += ["--bootstrap", bootstrap or self.bootstrap, "--topic", TOPIC, "--name", name]
        command += ["--partitions", str(load.partitions), "--rate", str(load.rate)]
        command += ["--size", str(load.record_bytes), *more]
        command += ["--replication", str(load.replication)]
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
        if load.acks != "all":
            command += ["--acks", load.acks]
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

    def create_topic(self, topic: str = TOPIC) -> None:
        settings = [word for pair in self.load.topic_settings for word in ("--set", pair)]
        # The last of an option that is given twice counts.
        self._run_client("create", "admin", *settings, "--topic", topic)

    def start_load(self) -> None:
        """Make the topic, start the clients, and wait for the first acks."""
        self.create_topic()
        roles = [("produce", f"p{n}") for n in range(1, self.load.producers + 1)]
        roles += [("consume", f"c{n}") for n in range(1, self.load.consumers + 1)]
        roles += [("member", f"m{n}") for n in range(1, self.load.members + 1)]
        for role, name in roles:
            self.start_client(role, name)
        if self.load.raw:
            self.start_raw()
        self.await_acks(1)

    def start_client(
        self, role: str, name: str, *, where: str = CLIENTS, bootstrap: str = ""
    ) -> None:
        """One more client, which runs until `stop_load`."""
        command = self._command(role, name, where=where, bootstrap=bootstrap)
        client = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
        self._clients.append((role, client))

    def start_raw(self) -> None:
        """A reader that looks at every reply of every broker; judged at the end."""
        history = self.home / "w1.jsonl"
        history.touch()
        self._histories.append(history)
        command = [*self.network.command(), sys.executable, "-m", "faults.raw", "--name", "w1"]
        command += ["--bootstrap", self.bootstrap, "--topic", TOPIC, "--history", str(history)]
        command += ["--partitions", str(self.load.partitions)]
        client = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
        self._clients.append(("raw", client))

    def _judge_raw(self) -> None:
        for event in self.events():
            if event["op"] == "x-raw":
                for text in event["problems"]:
                    self.problem(text)
                self.expect(event["batches"] > 0, "the reader of all replies read nothing")
                self.note(f"{event['fetches']} replies of brokers looked at one by one")

    def start_churn(self, *, pause_seconds: float = 0.02) -> None:
        """A client that makes and deletes topics and commits offsets; judged by stop_churn."""
        history = self.home / "x1.jsonl"
        self._histories.append(history)
        command = [*self.network.command(), sys.executable, "-m", "faults.churn"]
        command += ["--bootstrap", self.bootstrap, "--replication", str(self.load.replication)]
        command += ["--pause", str(pause_seconds)]
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
            try:
                code = client.wait(_CLIENT_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                raise ScenarioError(f"a client does not stop: {client.args!r}") from None
            if code != 0:
                raise ScenarioError("a client failed; its error is above")
        self._clients = [(kind, c) for kind, c in self._clients if c not in chosen]

    def acks_by_partition(self) -> Counter[int]:
        """Acks on record so far."""
        for path in self.home.glob("p*.jsonl"):
            done = self._counted.get(path, 0)
            with path.open("rb") as file:
                file.seek(done)
                data = file.read()
            # The last line may be half written.
            whole = data.rfind(b"\n") + 1
            for line in data[:whole].splitlines():
                if line.startswith(b'{"op":"ack"'):
                    self._acks[int(json.loads(line)["tp"].rpartition("/")[2])] += 1
            self._counted[path] = done + whole
        return Counter(self._acks)

    def acks(self) -> int:
        return self.acks_by_partition().total()

    def await_acks(self, count: int, seconds_max: float = _PROGRESS_SECONDS_MAX) -> float:
        """Wait until that many more sends are acked; returns the seconds. Says so if they don't."""
        before = self.acks()
        return self._await(
            lambda: self.acks() >= before + count, f"no {count} acks", seconds_max=seconds_max
        )

    def await_acks_of(
        self,
        partitions: Iterable[int],
        count: int = 5,
        seconds_max: float = _PROGRESS_SECONDS_MAX,
    ) -> float:
        """The same for each of some partitions."""
        wanted = {p: self.acks_by_partition()[p] + count for p in partitions}

        def all_acked() -> bool:
            acks = self.acks_by_partition()
            return all(acks[partition] >= number for partition, number in wanted.items())

        otherwise = f"no {count} acks of each of {sorted(wanted)}"
        return self._await(all_acked, otherwise, seconds_max=seconds_max)

    def await_either_acks(self, seconds_max: float) -> None:
        """Give writes a chance that they need not take: the cluster may be unavailable."""
        before, deadline = self.acks(), time.monotonic() + seconds_max
        while self.acks() < before + 10 and time.monotonic() < deadline:
            time.sleep(0.1)
        self.note("went on" if self.acks() >= before + 10 else "was unavailable")

    def await_moves(self, seconds_max: float) -> float:
        """Wait until no replica is on its way to another broker. Says so if one is."""
        return self._await(self.cluster.is_settled, "moves do not end", seconds_max=seconds_max)

    def await_acks_by(self, producer: str, count: int) -> float:
        """The same for all that one producer sends."""
        path = self.home / f"{producer}.jsonl"
        before = _count(path, b'{"op":"ack"')
        return self._await(
            lambda: _count(path, b'{"op":"ack"') >= before + count,
            f"no {count} acks for {producer}",
            seconds_max=_PROGRESS_SECONDS_MAX,
        )

    def await_commits(self, count: int) -> float:
        """Wait until the members of the group have committed that many times more."""
        paths = list(self.home.glob("m*.jsonl"))
        before = sum(_count(path, b'{"op":"commit"') for path in paths)
        return self._await(
            lambda: sum(_count(path, b'{"op":"commit"') for path in paths) >= before + count,
            f"no {count} commits of the group",
            seconds_max=_PROGRESS_SECONDS_MAX,
        )

    def await_group(self) -> None:
        """Wait until the group has committed all that was acked and nothing is on its way."""
        ends = {event["tp"]: event["o"] + 1 for event in self.events() if event["op"] == "ack"}
        for event in self.events():
            if event["op"] == "ack":
                ends[event["tp"]] = max(ends[event["tp"]], event["o"] + 1)

        def caught_up() -> bool:
            reached = dict.fromkeys(ends, 0)
            for event in read_history(self.home.glob("m*.jsonl")):
                if event["op"] == "commit":
                    reached[event["tp"]] = max(reached[event["tp"]], event["o"])
            return all(reached[key] >= end for key, end in ends.items())

        self._await(caught_up, "the group did not catch up", seconds_max=_PROGRESS_SECONDS_MAX)

    def record_committed(self) -> None:
        self._run_client("committed", "committed", "--seconds", "30")

    def _await(self, holds: Callable[[], bool], otherwise: str, *, seconds_max: float) -> float:
        started = time.monotonic()
        while not holds():
            if time.monotonic() - started > seconds_max:
                self.problem(f"{otherwise} within {seconds_max:.0f} s")
                self._keep_topologies()
                break
            time.sleep(0.05)
        return time.monotonic() - started

    def _keep_topologies(self) -> None:
        """What each broker says now, for whoever looks for the cause."""
        with (self.home / "stuck.jsonl").open("a") as file:
            for number, topology in self.cluster.topologies().items():
                file.write(json.dumps({"asked": number, **topology}) + "\n")

    def await_whole(self, seconds_max: float = _PROGRESS_SECONDS_MAX) -> float:
        """Wait until every running broker holds all of its replicas in sync. Says so if not."""
        return self._await(
            self.cluster.is_whole, "not every replica is in sync", seconds_max=seconds_max
        )

    def read_all(self, *, seconds_max: float = 60.0) -> bool:
        """Read every partition from start to end, on record; False if some could not be."""
        self._reads += 1
        code = self._run_client("read", f"r{self._reads}", "--seconds", str(seconds_max))
        return code == 0

    def record_bounds(self) -> None:
        self._run_client("bounds", "bounds", "--seconds", "20")

    # The record.

    def fault(self, name: str, partitions: Iterable[int] | None = None) -> int:
        """Put on record that a fault of some or all partitions starts now; returns the time."""
        self.result.faults += 1
        fields: dict[str, Any] = {"name": name}
        if partitions is not None:
            fields["tps"] = [f"{TOPIC}/{partition}" for partition in partitions]
        return self._note_event("x-fault", fields)

    def healed(self) -> int:
        """Put on record that what follows is no more part of the last fault."""
        return self._note_event("x-healed", {})

    def _note_event(self, operation: str, fields: dict[str, Any]) -> int:
        now = time.monotonic_ns()
        with self._own.open("a") as file:
            file.write(json.dumps({"op": operation, "at": now, **fields}) + "\n")
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
        self.start(node)
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

    def acks_between(self, first: int, last: int, producer: str = "") -> int:
        """Acks in that time, of all producers or of one."""
        return sum(
            event["op"] == "ack" and first <= event["at"] <= last and producer in ("", event["p"])
            for event in self.events()
        )

    def events(self) -> Iterator[dict[str, Any]]:
        return read_history(self._histories)

    def finish(self) -> Result:
        """Stop the load, read everything, and judge."""
        self.stop_load("produce")
        with suppress(subprocess.TimeoutExpired):
            self.expect(self.read_all(), "not every partition could be read to its end")
        self.stop_load()
        if len(self.nodes) > 1:
            self._compare_replicas()
            for node in self.nodes:
                ended = node.ended_by_itself()
                self.expect(ended is None, f"broker {node.number} ended by itself: {ended}")
        return self.judge()

    def _compare_replicas(self) -> None:
        """All brokers that run hold the same bytes of every partition, soon after the last ack."""
        deadline = time.monotonic() + _SAME_SECONDS_MAX
        while True:
            found = compare(self.cluster.replicas(), TOPIC)
            if not found.differences or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        for difference in found.differences[:5]:
            self.problem(difference)
        self.expect(found.replicas > 1, "no replicas to compare")
        self.note(f"{found.replicas} replicas of {found.partitions} partitions are the same")

    def judge(self) -> Result:
        result = self.result
        result.verdict = check(self.events())
        result.unavailable_seconds = unavailability(self.events())
        self._judge_raw()
        hung = sum(event["op"] == "x-close-hung" for event in self.events())
        if hung:
            self.note(f"{hung} consumers did not close in time")
        for anomaly, count in result.verdict.found.items():
            if anomaly not in self._expected:
                examples = "; ".join(result.verdict.examples[anomaly][:3])
                self.problem(f"{anomaly} ×{count}: {examples}")
        if not result.proofs:
            self.problem("no proof that the fault fired")
        if result.verdict.acked == 0:
            self.problem("nothing was acked, so nothing could be lost")
        return result


def _count(path: Path, start: bytes) -> int:
    """Lines of a history that start so."""
    if not path.exists():
        return 0
    return sum(line.startswith(start) for line in path.read_bytes().splitlines())
