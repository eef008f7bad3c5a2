"""The workers of a queue group in a run, and the verdict on what they saw."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from faults.application import Application
from faults.checker import read_history
from faults.leases import QueueVerdict, judge_queue
from faults.ordered import OrderedVerdict, judge_ordered
from faults.queue_worker import ATTEMPTS_MAX, poison
from faults.record import ROOT, TOPIC

GROUP: Final = "workers"
ORDERED_GROUP: Final = "ordered-workers"
_CALL_SECONDS_MAX: Final = 180.0
_SETTLED_SECONDS_MAX: Final = 60.0


class Queues(Application):
    """Workers on the topic; see faults/queue_worker.py."""

    def _queue_command(self, role: str, name: str, *more: str) -> list[str]:
        history = self.home / f"{name}.jsonl"
        history.touch()
        if history not in self._histories:
            self._histories.append(history)
        command = [*self.client(), sys.executable, "-m", "faults.queue_worker", role]
        command += ["--brokers", ",".join(node.grpc for node in self.nodes)]
        group = ORDERED_GROUP if role == "order" else GROUP
        command += ["--bootstrap", self.bootstrap, "--topic", TOPIC, "--group", group]
        command += ["--name", name, "--history", str(history), "--seed", str(self.seed)]
        return [*command, *more]

    def start_worker(self, name: str, role: str = "work") -> subprocess.Popen[bytes]:
        """One more worker, which runs until `stop_load`, or until somebody ends it."""
        command = self._queue_command(role, name)
        client = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
        self._clients.append(("work", client))
        return client

    def kill_worker(self, client: subprocess.Popen[bytes]) -> None:
        """SIGKILL, with whatever it has in its hands."""
        client.kill()
        client.wait()
        self._clients = [(kind, each) for kind, each in self._clients if each is not client]

    @contextlib.contextmanager
    def paused_worker(self, client: subprocess.Popen[bytes]) -> Iterator[None]:
        """SIGSTOP, and on it goes afterwards with what it had."""
        os.kill(client.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(client.pid, signal.SIGCONT)

    def settled(self) -> int:
        """Acks that were answered so far."""
        return sum(
            line.startswith(b'{"op":"x-acked"') and b'"r":"done"' in line
            for path in self.home.glob("q*.jsonl")
            for line in path.read_bytes().splitlines()
        )

    def await_settled(self, count: int) -> float:
        """Wait until that many more messages are acked by workers. Says so if they are not."""
        wanted = self.settled() + count
        return self.await_true(
            lambda: self.settled() >= wanted,
            f"no {count} messages were worked on",
            seconds_max=_SETTLED_SECONDS_MAX,
        )

    def drain_queue(self, seconds_max: float) -> None:
        """Wait until nothing is open. Says so if something is."""
        command = self._queue_command("drain", "drained", "--seconds", str(seconds_max))
        done = subprocess.run(command, cwd=ROOT, timeout=_CALL_SECONDS_MAX, check=False)
        left = [e for e in self._queue_events() if e["op"] == "x-not-drained"]
        self.expect(done.returncode == 0, f"the queue is not empty: {left}")

    def read_dead_letters(self) -> None:
        command = self._queue_command("dead", "dead")
        done = subprocess.run(command, cwd=ROOT, timeout=_CALL_SECONDS_MAX, check=False)
        self.expect(done.returncode == 0, "the dead letters could not be read to their end")

    def _queue_events(self) -> list[dict[str, Any]]:
        names = [*self.home.glob("q*.jsonl"), *map(self._path, ("drained", "dead"))]
        return list(read_history(path for path in names if path.exists()))

    def _path(self, name: str) -> Path:
        return self.home / f"{name}.jsonl"

    def judge_ordered_workers(self) -> OrderedVerdict:
        """Nothing comes again to who asks after the ack, and nothing is passed over."""
        verdict = judge_ordered(read_history(self.home.glob("o*.jsonl")))
        for text in verdict.examples:
            self.problem(f"ordered group: {text} ({verdict.found.total()} in all)")
        self.expect(verdict.acked > 0, "no message of the ordered group was acked")
        self.note(
            f"ordered group: {verdict.deliveries:,} deliveries, {verdict.acked:,} messages acked"
        )
        return verdict

    def judge_workers(self) -> QueueVerdict:
        """Each message acked once and never seen again, or a dead letter; none lost."""
        events = self._queue_events()
        verdict = judge_queue(events, attempts_max=ATTEMPTS_MAX, poison=poison)
        for breach, count in verdict.found.items():
            self.problem(f"queue: {breach} ×{count}: {'; '.join(verdict.examples[breach][:3])}")
        answers = Counter(event["r"] for event in events if event["op"] in ("x-acked", "x-nacked"))
        self.expect(verdict.acked > 0, "no message was acked")
        self.expect(verdict.dead > 0, "there was no dead letter")
        text = ", ".join(f"{count:,} {answer}" for answer, count in sorted(answers.items()))
        self.note(
            f"queue: {verdict.messages:,} messages, {verdict.deliveries:,} deliveries, "
            f"{verdict.acked:,} acked, {verdict.dead:,} dead letters; answers: {text}"
        )
        return verdict
