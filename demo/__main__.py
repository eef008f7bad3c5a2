"""`python -m demo`: the story from three empty brokers to the verdict of the audit."""

import argparse
import contextlib
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from demo.commands import FailedError, Moldau, end, finished
from demo.load import Load, Sampler, longest_gap, per_second
from demo.picture import Story, in_terminal, save_png

TOPIC: Final = "clicks"
RESULTS: Final = "clicks-per-page"
ARCHIVE: Final = "archive-clicks"
AGGREGATE: Final = "clicks-per-page"
PARTITIONS: Final = 4
START_SECONDS_MAX: Final = 300.0
"""Of a pipeline; ten to thirty seconds where nothing else runs."""
AUDIT_SECONDS_MAX: Final = 600.0
DOWN_SECONDS: Final = 10.0
BUSY: Final = "Python worker failed to connect back"
DRAIN_SECONDS_MAX: Final = 180.0
STAGES: Final = 8
MASTER: Final = "local[2]"
ON_SPARK: Final = ("--trigger", "2s", "--master", MASTER)
"""Pipelines that go on until they are stopped."""
STOP_SECONDS_MAX: Final = 150.0
SQL: Final = (
    "SELECT window.start AS since, page, count(*) AS clicks, round(avg(took_ms)) AS took_ms "
    "FROM events GROUP BY window(_timestamp, '10 seconds'), page"
)
SCHEMA: Final = "id bigint, visitor string, page string, country string, took_ms int, at bigint"


def archive_command(lake: Path) -> tuple[str, ...]:
    return ("archive", "--topic", TOPIC, "--to", str(lake), "--name", ARCHIVE, *ON_SPARK)


def aggregate_command() -> tuple[str, ...]:
    query = ("--schema", SCHEMA, "--sql", SQL, "--watermark", "5 seconds")
    to = ("--to", RESULTS, "--key", "page", "--name", AGGREGATE)
    return ("aggregate", "--topic", TOPIC, *query, *to, *ON_SPARK)


def audit_command(lake: Path) -> tuple[str, ...]:
    lag = ("--group", ARCHIVE, "--lag-max", "0")
    return ("audit", "--topic", TOPIC, "--table", str(lake), *lag, "--master", MASTER)


class Demo:
    """One run. What it starts is in `closing`, and ends with it, in the reverse order."""

    def __init__(
        self, reported: argparse.Namespace, folder: Path, closing: contextlib.ExitStack
    ) -> None:
        self._reported = reported
        self._folder = folder
        self._closing = closing
        self._began = time.monotonic()
        self._stage = 0
        self._bootstrap = ""
        self._homes = folder / "pipelines"
        self._pipelines: dict[str, subprocess.Popen[bytes]] = {}
        self._lake = folder / "lake"
        self._cluster = str(folder / "cluster")
        self._moldau = Moldau({"MOLDAU_PIPELINES_HOME": str(self._homes), "NO_COLOR": "1"})

    def run(self) -> int:
        self._start_brokers()
        self._start_pipelines()
        story, load, sampler = self._send_clicks()
        self._drain()
        sampler.stop()
        self._show_results()
        is_whole = self._audit(load) and self._open_with_polars(load)
        self._draw(replace(story, lag=tuple(sampler.samples), is_whole=is_whole))
        took = time.monotonic() - self._began
        print(f"\n{'All is well' if is_whole else 'NOT all is well'}, after {took:.0f} s.")
        return 0 if is_whole else 1

    # -- the stages

    def _start_brokers(self) -> None:
        self._say("three brokers")
        self._closing.callback(self._moldau.quietly, "cluster", "stop", "--data-dir", self._cluster)
        ports = [word for name in ("kafka", "raft", "http") for word in (f"--{name}-port", "0")]
        self._moldau.run("cluster", "start", "-n", "3", "-d", "--data-dir", self._cluster, *ports)
        found = json.loads(
            self._moldau.run("cluster", "status", "--data-dir", self._cluster, "-o", "json")
        )
        self._bootstrap = found["bootstrap"]
        self._moldau = Moldau(
            {
                "MOLDAU_PIPELINES_HOME": str(self._homes),
                "MOLDAU_BROKERS": self._bootstrap,
                "NO_COLOR": "1",
            }
        )
        for topic in (TOPIC, RESULTS):
            self._moldau.run("topic", "create", topic, "--partitions", str(PARTITIONS))

    def _start_pipelines(self) -> None:
        self._say("two pipelines on Spark: an archive to a Delta table, and counts per 10 s")
        commands = {ARCHIVE: archive_command(self._lake), AGGREGATE: aggregate_command()}
        for name, arguments in commands.items():
            self._begin_pipeline(name, arguments)
        for name, arguments in commands.items():
            try:
                self._wait_running(name)
            except FailedError as error:
                # Spark gives its Python ten seconds to come up; a busy machine may take longer.
                if BUSY not in error.said:
                    raise
                print("      this machine is busy: once more", flush=True)
                self._begin_pipeline(name, arguments)
                self._wait_running(name)

    def _begin_pipeline(self, name: str, arguments: tuple[str, ...]) -> None:
        """In the background, with its own log, as systemd or Kubernetes would run it."""
        with open(self._log(name), "wb") as log:
            process = self._moldau.begin("pipeline", "run", *arguments, output=log)
        # Ended also if it never comes to run, or we are interrupted meanwhile.
        self._closing.callback(end, process, seconds_max=30.0)
        self._pipelines[name] = process

    def _wait_running(self, name: str) -> None:
        from moldau.client.errors import ClientError
        from moldau.spark.pipelines.spec import PipelineState
        from moldau.spark.pipelines.status import StatusTopic

        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            self._check_pipelines(name)
            with contextlib.suppress(ClientError), StatusTopic(self._bootstrap) as board:
                record = board.read().get(name)
                if record is not None and record.state is PipelineState.RUNNING:
                    return
            time.sleep(0.5)
        raise FailedError(f"{name} does not run after {START_SECONDS_MAX:g} s", self._said(name))

    def _send_clicks(self) -> tuple[Story, Load, Sampler]:
        reported = self._reported
        self._say(f"{reported.seconds:.0f} s of clicks, about {reported.rate:.0f} a second")
        load = Load(self._bootstrap, TOPIC, rate=reported.rate, seconds=reported.seconds)
        sampler = Sampler(self._lag, lambda: load.elapsed)
        self._closing.callback(load.stop)
        self._closing.callback(sampler.stop)
        load.start()
        sampler.start()
        self._watch(load, until=reported.seconds / 2)
        self._say("kill the leader of the first partition (kill -9), under load")
        said = self._moldau.run(
            "cluster", "kill", "--leader-of", TOPIC, "--data-dir", self._cluster
        )
        killed_at = load.elapsed
        number = next((int(word) for word in said.split() if word.isdigit()), None)
        self._watch(load, until=killed_at + DOWN_SECONDS)
        restarted_at = None
        if number is not None:
            self._moldau.run("cluster", "restart", str(number), "--data-dir", self._cluster)
            restarted_at = load.elapsed
        self._watch(load, until=None)
        load.stop()
        if load.error is not None:
            raise FailedError(f"the producer failed: {load.error}")
        seconds = max([reported.seconds, *(ack.at for ack in load.acks)])
        # `--leader-of` is the leader of the first partition.
        stricken = [ack.at for ack in load.acks if ack.partition == 0]
        story = Story(
            seconds=seconds,
            acks_per_second=per_second([ack.at for ack in load.acks], seconds),
            stricken_per_second=per_second(stricken, seconds),
            killed_at=killed_at,
            restarted_at=restarted_at,
            gap=longest_gap(stricken),
            broker=number,
        )
        print(
            f"      {load.acked:,} clicks were taken, {load.failed:,} were not; its partition took "
            f"nothing for {story.gap.seconds:.1f} s"
        )
        return story, load, sampler

    def _drain(self) -> None:
        self._say("wait until all clicks are in the lake, then stop both pipelines")
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while (lag := self._lag()) != 0:
            self._check_pipelines()
            if time.monotonic() > deadline:
                raise FailedError(f"{lag} clicks are still not in the lake")
            time.sleep(0.5)
        # A window is written in the batch after the one that ends it.
        while time.monotonic() < deadline and (
            self._lag(AGGREGATE) != 0 or not self._page_counts()
        ):
            self._check_pipelines()
            time.sleep(1.0)
        for name, process in self._pipelines.items():
            print(f"      $ kill {process.pid}  # {name}", flush=True)
            if end(process, seconds_max=STOP_SECONDS_MAX) != 0:
                raise FailedError(f"{name} did not stop in order", self._said(name))

    def _show_results(self) -> None:
        self._say("what the aggregate has found")
        counts = self._page_counts()
        for page, count in sorted(counts.items(), key=lambda item: -item[1])[:5]:
            print(f"      {page:<18} {count:>8,} clicks in windows that are over")

    def _open_with_polars(self, load: Load) -> bool:
        """Count the clicks with an engine that knows nothing of us."""
        import polars as pl

        self._say("the same table, opened by polars")
        found = (
            pl.scan_delta(str(self._lake))
            .select(
                counted=pl.len(),
                distinct=pl.struct("partition", "offset").n_unique(),
                countries=pl.col("value")
                .cast(pl.String)
                .str.json_path_match("$.country")
                .n_unique(),
            )
            .collect()
        )
        counted, distinct, countries = found.row(0)
        print(f"      {counted:,} clicks, {distinct:,} different ones, from {countries} countries")
        return bool(counted == distinct == load.acked)

    def _audit(self, load: Load) -> bool:
        from moldau.cli.pipeline.audit import show
        from moldau.spark.pipelines.spec import Outcome

        self._say("the audit: every click of the topic once in the lake, byte by byte?")
        command = ("pipeline", "run", *audit_command(self._lake), "-o", "json")
        process = self._moldau.begin(*command)
        try:
            said = finished(process, command, AUDIT_SECONDS_MAX)
        except FailedError as error:
            said = error.said
            if process.returncode != 1 or "{" not in said:
                raise
        outcome, _ = json.JSONDecoder().raw_decode(said, said.index("{"))
        reported = {name: outcome[name] for name in ("ok", "summary", "details")}
        print()
        show(Outcome(**reported))
        counted = reported["details"]["totals"]["source_rows"]
        is_whole = bool(outcome["ok"]) and counted == load.acked and not load.failed
        if counted != load.acked:
            print(f"      but the producer got {load.acked:,} acks, and the topic has {counted:,}")
        return is_whole

    def _draw(self, story: Story) -> None:
        print()
        print(in_terminal(story, columns=min(100, shutil.get_terminal_size().columns)))
        save_png(story, self._reported.picture)
        print(f"\n      saved as {self._reported.picture}")

    # -- asking

    def _check_pipelines(self, *names: str) -> None:
        """Raises FailedError with what a pipeline ended by, rather than wait for it."""
        for name in names or self._pipelines:
            if (code := self._pipelines[name].poll()) is not None:
                raise FailedError(f"{name} ended with code {code}", self._said(name))

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _said(self, name: str) -> str:
        return self._log(name).read_text(errors="replace")

    def _lag(self, group: str = ARCHIVE) -> float | None:
        """Of a pipeline; None while nobody can tell."""
        from moldau.client.errors import ClientError
        from moldau.client.kafka.admin import Admin

        try:
            lags = Admin(self._bootstrap).group(group).lags
        except ClientError:
            return None
        if len(lags) < PARTITIONS or any(each.lag < 0 for each in lags):
            return None
        return float(sum(each.lag for each in lags))

    def _page_counts(self) -> dict[str, int]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "demo",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        counts: dict[str, int] = {}
        try:
            consumer.assign([TopicPartition(RESULTS, p, 0) for p in range(PARTITIONS)])
            ended: set[int] = set()
            deadline = time.monotonic() + 15
            while len(ended) < PARTITIONS and time.monotonic() < deadline:
                message = consumer.poll(0.5)
                if message is None:
                    continue
                partition, value = message.partition(), message.value()
                assert partition is not None
                if message.error() is not None or value is None:
                    ended.add(partition)
                    continue
                row = json.loads(value)
                counts[row["page"]] = counts.get(row["page"], 0) + row["clicks"]
        finally:
            consumer.close()
        return counts

    # -- telling

    def _say(self, text: str) -> None:
        self._stage += 1
        elapsed = time.monotonic() - self._began
        print(f"\n[{self._stage}/{STAGES}] {elapsed:3.0f} s  {text}", flush=True)

    def _watch(self, load: Load, *, until: float | None) -> None:
        """Shows how the load goes, to its end or until a moment."""
        is_terminal = sys.stdout.isatty()
        shown = 0.0
        while load.is_running and (until is None or load.elapsed < until):
            time.sleep(0.2)
            self._check_pipelines()
            if time.monotonic() - shown > (0.5 if is_terminal else 10.0):
                shown = time.monotonic()
                recent = sum(ack.at > load.elapsed - 1 for ack in load.acks[-20_000:])
                text = f"      {load.elapsed:3.0f} s  {load.acked:>9,} taken  {recent:>6,} a second"
                print(text, end="\r" if is_terminal else "\n", flush=True)
        if is_terminal:
            print(" " * 60, end="\r")


def missing() -> str:
    """What the demo cannot do without, in one line; empty if all is there."""
    for module, extra in (
        ("pyspark", "spark"),
        ("pyarrow", "spark"),
        ("matplotlib", "demo"),
        ("polars", "demo"),
    ):
        if importlib.util.find_spec(module) is None:
            return (
                f"the Python package {module} is missing: make demo installs it, or "
                f"pip install 'moldau[{extra}]'"
            )
    from moldau.spark.java import JavaError, find_java

    try:
        find_java()
    except JavaError as error:
        return f"{error}: {error.hint}"
    return ""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: everything that it started is ended."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Within, nobody interrupts: what was started is being ended."""
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def play(reported: argparse.Namespace, folder: Path) -> int:
    closing = contextlib.ExitStack()
    try:
        return Demo(reported, folder, closing).run()
    except KeyboardInterrupt:
        print("\ninterrupted: ending what was started …", flush=True)
        return 130
    except FailedError as error:
        print(f"\nerror: {error}\n{error.said[-3000:]}", file=sys.stderr, flush=True)
        return 1
    finally:
        with undisturbed():
            closing.close()


def main(arguments: list[str] | None = None, play: Callable[..., int] = play) -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=70.0, help="how long clicks come")
    parser.add_argument("--rate", type=float, default=1500.0, help="clicks a second, on average")
    parser.add_argument("--folder", type=Path, help="keep brokers' data, lake and logs here")
    parser.add_argument("--picture", type=Path, default=Path("demo.png"))
    reported = parser.parse_args(arguments)
    if reported.seconds < 20 or reported.rate <= 0:
        parser.error("--seconds is at least 20, --rate more than 0")
    if lacking := missing():
        print(f"error: {lacking}", file=sys.stderr)
        return 1
    with contextlib.ExitStack() as stack:
        stack.enter_context(interruptible())
        if reported.folder is None:
            found = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="moldau-demo-", ignore_cleanup_errors=True)
            )
            folder = Path(found)
        else:
            reported.folder.mkdir(parents=True, exist_ok=True)
            folder = reported.folder.absolute()
        return play(reported, folder)


if __name__ == "__main__":
    sys.exit(main())
