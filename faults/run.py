"""One run of a scenario, from the first broker to the verdict.

What it is made of, one class on another: the record (record.py), the brokers and their network
(world.py), the clients (drive.py), an application (application.py), workers of a queue (queues.py),
and here the end.
"""

import shutil
import subprocess
import time
from contextlib import suppress
from typing import Final, Self

from faults.checker import Anomaly, check
from faults.clients import History
from faults.measures import unavailability
from faults.queues import Queues
from faults.record import ROOT, TOPIC, Load, Result, ScenarioError
from faults.replicas import compare
from faults.stored import record_replica

__all__ = ["ROOT", "TOPIC", "Load", "Result", "Run", "ScenarioError"]
_SAME_SECONDS_MAX: Final = 30.0


class Run(Queues):
    """Use as a context: everything it started ends with it."""

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *error: object) -> None:
        for _, client in self._clients:
            if client.poll() is None:
                client.kill()
                client.wait()
        self._stack.close()

    def finish(self) -> Result:
        """Stop the load, read everything, and judge."""
        self.stop_load("produce")
        with suppress(subprocess.TimeoutExpired):
            self.expect(self.read_all(), "not every partition could be read to its end")
        self.stop_load()
        if len(self.nodes) > 1:
            for node in self.nodes:
                ended = node.ended_by_itself()
                self.expect(ended is None, f"broker {node.number} ended by itself: {ended}")
            if self.load.keys:
                self._read_replicas()
            else:
                self._compare_replicas()
        result = self.judge()
        if not result.passed:
            self._keep_replicas()
        return result

    def _keep_replicas(self) -> None:
        """Volumes go with the run; what brokers held of the topic stays for inspection."""
        for node in self.nodes:
            source = node.data_dir / "topics" / TOPIC
            if source.is_dir():
                shutil.copytree(source, self.home / f"kept{node.number}", dirs_exist_ok=True)

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
        if found.bumps and not self.load.transactors:
            self.note(f"{found.bumps} times a producer began a new epoch")

    def _read_replicas(self) -> None:
        """Stop the brokers; what each holds of a compacted topic is judged as what was read."""
        places = self.cluster.replicas()
        for node in self.nodes:
            if node.alive():
                node.stop()
        history = self.home / "stored.jsonl"
        self._histories.append(history)
        count = 0
        with history.open("w") as file:
            for partition, homes in places.items():
                for home in homes:
                    reader, count = f"replica {home.name}", count + 1
                    whole = record_replica(home, TOPIC, partition, reader, History(file))
                    self.expect(whole, f"{home.name} lacks offsets of partition {partition}")
        self.expect(count > 1, "no replicas to read")
        self.note(f"{count} replicas of {len(places)} partitions were read one by one")

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

    def _judge_raw(self) -> None:
        for event in self.events():
            if event["op"] == "x-raw":
                # What was lost is written again, with other content: that is the loss, seen again.
                if Anomaly.INCONSISTENT not in self._expected:
                    for text in event["problems"]:
                        self.problem(text)
                self.expect(event["batches"] > 0, "the reader of all replies read nothing")
                self.note(f"{event['fetches']} fetch responses checked")
                if event["behind"]:
                    self.note(f"{event['behind']} of them by leaders that did not know better")
