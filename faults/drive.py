"""The clients of a run: starts and stops them, and waits for what they get."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from faults.checker import read_history
from faults.network import CLIENTS
from faults.record import ROOT, TOPIC, Load, ScenarioError
from faults.secured import OPERATOR, WORKLOAD
from faults.world import World
from moldau.testing.waiting import slowdown

_CLIENT_SECONDS_MAX: Final = 120.0
_PROGRESS_SECONDS_MAX: Final = 60.0
_LOOK_SECONDS: Final = 0.1
_ELECT_SECONDS: Final = 3.0


class Drive(World):
    """Clients at work. What is waited for in vain is put on record, and the run goes on."""

    def __init__(
        self,
        home: Path,
        *,
        quick: bool = False,
        load: Load | None = None,
        seed: int = 1,
        secured: bool = False,
    ) -> None:
        super().__init__(home, quick=quick, load=load, seed=seed, secured=secured)
        self._clients: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._reads = 0

    def _command(
        self,
        role: str,
        name: str,
        *more: str,
        where: str = CLIENTS,
        bootstrap: str = "",
        user: str = WORKLOAD,
    ) -> list[str]:
        load = self.load
        command = [*self.client(where, user), sys.executable, "-m", "faults.clients", role]
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
        if load.keys:
            command += ["--keys", str(load.keys)]
        return command

    def _run_client(self, role: str, name: str, *more: str, user: str = WORKLOAD) -> int:
        done = subprocess.run(
            self._command(role, name, *more, user=user),
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
        if self.security is not None:
            self.security.admit(self.network.command(), self.nodes[0])
        # The last of an option that is given twice counts.
        self._run_client("create", "admin", *settings, "--topic", topic, user=OPERATOR)

    def start_load(self) -> None:
        """Make the topic, start the clients, and wait for the first acks."""
        self.create_topic()
        roles = [("produce", f"p{n}") for n in range(1, self.load.producers + 1)]
        roles += [("consume", f"c{n}") for n in range(1, self.load.consumers + 1)]
        roles += [("member", f"m{n}") for n in range(1, self.load.members + 1)]
        for role, name in roles:
            self.start_client(role, name)
        for number in range(1, self.load.transactors + 1):
            # One of them speaks as older clients do.
            self.start_transactor(f"p{number}", old=number == self.load.transactors)
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

    def start_transactor(self, name: str, *, old: bool) -> None:
        """A producer of transactions; it waits before their ends while home/hold is there."""
        more = ["--rate", str(self.load.rate), "--size", str(self.load.record_bytes)]
        more += ["--hold", str(self.home / "hold"), *(["--old"] if old else [])]
        command = self._transactor("write", name, *more)
        client = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
        self._clients.append(("transact", client))

    def expect_stable(self, topic: str = TOPIC, seconds_max: float = 30.0) -> None:
        """No transaction is left open: those who read committed get to the end."""
        more = ("--topic", topic, "--seconds", str(seconds_max))
        command = self._transactor("stable", "stable", *more)
        done = subprocess.run(command, cwd=ROOT, timeout=_CLIENT_SECONDS_MAX, check=False)
        ends = [event["ends"] for event in self.events() if event["op"] == "x-stable"]
        self.expect(
            done.returncode == 0,
            f"the last stable offset stands still after {seconds_max:.0f} s: {ends}",
        )

    def _transactor(self, role: str, name: str, *more: str) -> list[str]:
        history = self.home / f"{name}.jsonl"
        history.touch()
        self._histories.append(history)
        command = [*self.client(), sys.executable, "-m", "faults.transactor", role]
        command += ["--bootstrap", self.bootstrap, "--topic", TOPIC, "--name", name]
        command += ["--partitions", str(self.load.partitions), "--history", str(history)]
        return [*command, *more]

    def start_raw(self) -> None:
        """A reader that looks at every reply of every broker; judged at the end."""
        history = self.home / "w1.jsonl"
        history.touch()
        self._histories.append(history)
        command = [*self.client(), sys.executable, "-m", "faults.raw", "--name", "w1"]
        command += ["--bootstrap", self.bootstrap, "--topic", TOPIC, "--history", str(history)]
        command += ["--partitions", str(self.load.partitions)]
        client = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
        self._clients.append(("raw", client))

    def start_churn(self, *, pause_seconds: float = 0.02) -> None:
        """A client that makes and deletes topics and commits offsets; judged by stop_churn."""
        history = self.home / "x1.jsonl"
        self._histories.append(history)
        command = [*self.client(user=OPERATOR), sys.executable, "-m", "faults.churn"]
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

    def await_acks(self, count: int, seconds_max: float = _PROGRESS_SECONDS_MAX) -> float:
        """Wait until that many more sends are acked; returns the seconds. Says so if they don't."""
        before = self.acks()
        return self.await_true(
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
        return self.await_true(all_acked, otherwise, seconds_max=seconds_max)

    def await_either_acks(self, seconds_max: float) -> None:
        """Give writes a chance that they need not take: the cluster may be unavailable."""
        before, deadline = self.acks(), time.monotonic() + seconds_max
        while self.acks() < before + 10 and time.monotonic() < deadline:
            time.sleep(0.1)
        self.note("went on" if self.acks() >= before + 10 else "was unavailable")

    def await_balanced(self, seconds_max: float = _PROGRESS_SECONDS_MAX) -> float:
        """Bring leadership to where it shall be, as an operator does. Says so if that fails."""
        asked_at = 0.0

        def is_balanced() -> bool:
            nonlocal asked_at
            if self.cluster.is_balanced():
                return True
            # Again: a replica that has just come back may not be one that can lead yet.
            if time.monotonic() - asked_at > _ELECT_SECONDS:
                self.operate("partition", "elect-leaders")
                asked_at = time.monotonic()
            return False

        return self.await_true(is_balanced, "leaders are not balanced", seconds_max=seconds_max)

    def operate(self, *words: str) -> bool:
        """A command of an operator; whether it succeeded."""
        login = self.security.as_user(OPERATOR) if self.security else []
        command = [*login, sys.executable, "-m", "moldau", *words, "--brokers", self.bootstrap]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_CLIENT_SECONDS_MAX,
            check=False,
            cwd=ROOT,
        )
        return done.returncode == 0

    def await_moves(self, seconds_max: float) -> float:
        """Wait until no replica is on its way to another broker. Says so if one is."""
        return self.await_true(self.cluster.is_settled, "moves do not end", seconds_max=seconds_max)

    def await_acks_by(self, producer: str, count: int) -> float:
        """The same for all that one producer sends."""
        path = self.home / f"{producer}.jsonl"
        before = _count(path, b'{"op":"ack"')
        return self.await_true(
            lambda: _count(path, b'{"op":"ack"') >= before + count,
            f"no {count} acks for {producer}",
            seconds_max=_PROGRESS_SECONDS_MAX,
        )

    def await_commits(self, count: int) -> float:
        """Wait until the members of the group have committed that many times more."""
        paths = list(self.home.glob("m*.jsonl"))
        before = sum(_count(path, b'{"op":"commit"') for path in paths)
        return self.await_true(
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

        self.await_true(caught_up, "the group did not catch up", seconds_max=_PROGRESS_SECONDS_MAX)

    def record_committed(self) -> None:
        self._run_client("committed", "committed", "--seconds", "30")

    def await_true(
        self,
        holds: Callable[[], bool],
        otherwise: str,
        *,
        seconds_max: float = _PROGRESS_SECONDS_MAX,
    ) -> float:
        """Wait until something holds; says so if it does not."""
        started = time.monotonic()
        while not holds():
            if time.monotonic() - started > seconds_max * slowdown():
                self.problem(f"{otherwise} within {seconds_max:.0f} s")
                self._keep_topologies()
                break
            time.sleep(_LOOK_SECONDS)
        return time.monotonic() - started

    def _keep_topologies(self) -> None:
        """What each broker says now, to find the cause."""
        with (self.home / "stuck.jsonl").open("a") as file:
            for number, topology in self.cluster.topologies().items():
                file.write(json.dumps({"asked": number, **topology}) + "\n")

    def await_whole(self, seconds_max: float = _PROGRESS_SECONDS_MAX) -> float:
        """Wait until every running broker holds all of its replicas in sync. Says so if not."""
        return self.await_true(
            self.cluster.is_whole, "not every replica is in sync", seconds_max=seconds_max
        )

    def read_all(self, *, seconds_max: float = 60.0) -> bool:
        """Read every partition from start to end, on record; False if some could not be."""
        self._reads += 1
        code = self._run_client("read", f"r{self._reads}", "--seconds", str(seconds_max))
        return code == 0

    def record_bounds(self) -> None:
        self._run_client("bounds", "bounds", "--seconds", "20")

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


def _count(path: Path, start: bytes) -> int:
    """Lines of a history that start so."""
    if not path.exists():
        return 0
    return sum(line.startswith(start) for line in path.read_bytes().splitlines())
