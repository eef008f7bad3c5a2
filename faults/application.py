"""The applications of a run that transform one topic into another, and the verdict on them."""

import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from typing import Final

from faults.checker import Verdict, read_history
from faults.drive import Drive
from faults.once import judge_output
from faults.record import ROOT, TOPIC

_CALL_SECONDS_MAX: Final = 120.0
_TRANSFORMED_SECONDS_MAX: Final = 60.0


class Application(Drive):
    """A crew of workers in one group; see faults/worker.py."""

    def _crew_command(self, role: str, name: str, output: str, *more: str) -> list[str]:
        history = self.home / f"{name}.jsonl"
        history.touch()
        self._histories.append(history)
        command = [*self.client(), sys.executable, "-m", "faults.worker", role]
        command += ["--bootstrap", self.bootstrap, "--topic", TOPIC, "--output", output]
        command += ["--partitions", str(self.load.partitions), "--history", str(history)]
        return [*command, *more]

    def start_crew(self, output: str, count: int) -> None:
        more = ["--count", str(count), "--seed", str(self.seed), "--calm", str(self.home / "calm")]
        if self.load.plain:
            more.append("--plain")
        command = self._crew_command("crew", "crew", output, *more)
        client = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
        self._clients.append(("crew", client))

    def calm_crew(self) -> None:
        """From now on workers come only in place of others."""
        (self.home / "calm").touch()

    def _transformed(self) -> int:
        events = read_history(self.home.glob("k*.jsonl"))
        return sum(event["count"] for event in events if event["op"] == "x-committed")

    def await_transformed(self, count: int) -> float:
        """Wait until that many more inputs are transformed, as far as workers heard of it."""
        wanted = self._transformed() + count
        return self.await_true(
            lambda: self._transformed() >= wanted,
            f"no {count} inputs were transformed",
            seconds_max=_TRANSFORMED_SECONDS_MAX,
        )

    def await_caught_up(self, output: str, seconds_max: float) -> None:
        """Wait until the group has committed all of the input. Says so if it does not."""
        started = time.monotonic()
        command = self._crew_command("wait", "reached", output, "--seconds", str(seconds_max))
        done = subprocess.run(command, cwd=ROOT, timeout=_CALL_SECONDS_MAX, check=False)
        seen = [event for event in self.events() if event["op"] == "x-reached"]
        self.expect(
            done.returncode == 0, f"not all was transformed within {seconds_max:.0f} s: {seen}"
        )
        self.note(f"all was transformed {time.monotonic() - started:.0f} s after the last input")

    def stop_crew(self) -> None:
        self.stop_load("crew")
        done: Counter[str] = Counter()
        for event in self.events():
            if event["op"] == "x-crew":
                done.update(event["done"])
        self.expect(done["left"] + done["killed"] > 0, "no worker came or went")
        text = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
        self.proof(f"workers of the group: {text}")

    def judge_output(self, output: str) -> Verdict:
        """Read the output as one who reads committed; each input is there once, in order."""
        name = "output"
        code = self._run_client("read", name, "--topic", output)
        path = self.home / f"{name}.jsonl"
        # Not a part of the history of the input.
        self._histories.remove(path)
        self.expect(code == 0, "the output could not be read to its end")
        verdict = judge_output(self.events(), read_history([path]), output)
        for anomaly, count in verdict.found.items():
            examples = "; ".join(verdict.examples[anomaly][:3])
            if anomaly not in self._expected:
                self.problem(f"output: {anomaly} ×{count}: {examples}")
            found = self.result.verdict.found
            found[anomaly] = found.get(anomaly, 0) + count
        self.expect(verdict.acked > 0, "there was no input")
        self.note(
            f"{verdict.acked:,} inputs, {verdict.records_distinct:,} of them in the output, "
            f"{verdict.records_polled:,} records there"
        )
        return verdict

    def longest_pause(self) -> float:
        """Seconds without an output that was committed, as far as workers heard of it."""
        events = read_history(self.home.glob("k*.jsonl"))
        times = sorted(event["at"] for event in events if event["op"] == "x-committed")
        return max((later - earlier for earlier, later in pairwise(times)), default=0) / 1e9
