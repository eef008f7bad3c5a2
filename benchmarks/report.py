"""Turns the values of a run into tables: on the terminal, as JSON, and in docs/performance.md."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.bench import Bench
from benchmarks.beside import METRICS
from benchmarks.kafka_report import beside_table, kafka_targets_table, warmth, write_kafka_docs
from benchmarks.machine import machine
from benchmarks.suites.peers import PEERS
from benchmarks.tables import Table, judged, number, replace_between
from benchmarks.targets import verdicts

DOCS_PATH = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
BEGIN = "<!-- measured: begin -->"
END = "<!-- measured: end -->"
DOCS_NEW = f"""# Performance

{BEGIN}
{END}
"""

LOAD_COLUMNS = ["load", "client", "server", "MB/s", "msg/s", "CPU ms/MB", "CPU µs/msg"]


def targets_table(bench: Bench) -> Table:
    found = [one for one in verdicts(bench) if not one[0].metric.startswith(METRICS)]
    return judged(bench, "Targets", found)


def loads_table(bench: Bench) -> Table:
    """Every Kafka load of ours and of the mock, with what bounded it."""
    table = Table(
        "Kafka loads",
        [*LOAD_COLUMNS, "server/client cores"],
    )
    clients = {
        "rdkafka": "librdkafka (C)",
        "confluent": "confluent-kafka",
        "raw": "raw socket",
    }
    for prefix in ("produce", "consume"):
        for size in ("1024", "100"):
            for batch in ("1MB.", "16KB.", ""):
                for client, client_name in clients.items():
                    for server in ("moldau", "mock"):
                        metric = f"{prefix}.{size}.{batch}{client}.{server}"
                        name = f"{prefix} {size} B {batch.rstrip('.')}".strip()
                        _add_load(table, bench, metric, name, client_name, server)
    for metric, name, server in (
        ("flush.never", "produce 1024 B 1MB acks=all", "moldau, flush=never"),
        ("flush.always", "produce 1024 B 1MB acks=all", "moldau, flush=always"),
    ):
        _add_load(table, bench, metric, name, "librdkafka (C)", server)
    for load in ("produce", "consume"):
        for batch in ("1MB", "16KB"):
            client_name = clients["rdkafka" if load == "produce" else "confluent"]
            for server, words in (("plain", "moldau"), ("tls", "moldau, TLS")):
                metric, name = f"tls.{load}.{batch}.{server}", f"{load} 1024 B {batch}, TLS turns"
                _add_load(table, bench, metric, name, client_name, words)
    for server in ("moldau", "mock"):
        _add_load(table, bench, f"small.{server}", "100 B requests, 8 × 5", "raw socket", server)
    for suffix, words in (("", ""), (".keyed", ", with keys")):
        name = f"produce 100 B, 1,000 in a body{words}"
        _add_load(table, bench, f"http.produce{suffix}", name, "raw socket", "moldau, HTTP")
    for codec in ("none", "lz4"):
        for query in ("contains", "json", "path", "newest"):
            metric, name = f"search.{codec}.{query}", f"search 1024 B, {codec}: {query}"
            _add_load(table, bench, metric, name, "one request at a time", "moldau, HTTP")
    return table


def cluster_table(bench: Bench) -> Table:
    """Three brokers and one, on the same load; CPU is that of all brokers together."""
    table = Table(
        "Three brokers on one machine, replication factor 3, acks=all (CPU: all brokers together)",
        [*LOAD_COLUMNS, "servers/client cores"],
    )
    servers = (
        ("single", "one broker, acks=1"),
        ("never", "three, flush=never"),
        ("always", "three, flush=always"),
    )
    for client, name in (("confluent", "confluent-kafka"), ("rdkafka", "librdkafka (C)")):
        for server, text in servers:
            _add_load(table, bench, f"cluster.{server}.{client}", "produce 1024 B 1MB", name, text)
    for flush in ("never", "always"):
        metric = f"cluster.small.{flush}"
        leader, follower = (
            number(bench.value(f"{metric}.{who}_us")) for who in ("leader", "follower")
        )
        text = f"three, flush={flush} (leader {leader} µs, a follower {follower} µs each)"
        _add_load(table, bench, metric, "100 B requests, 8 × 5", "raw socket", text)
    return table


LIFE = (
    ("idle.few.cpu_percent", "idle, 10 partitions: CPU of a broker", "% of a core"),
    ("idle.many.cpu_percent", "idle, 1,000 partitions: CPU of a broker", "% of a core"),
    ("idle.few.frames_s", "idle, 10 partitions: frames between the brokers", "a second"),
    ("idle.many.frames_s", "idle, 1,000 partitions: frames between the brokers", "a second"),
    ("idle.few.bytes_s", "idle, 10 partitions: bytes between the brokers", "a second"),
    ("idle.many.bytes_s", "idle, 1,000 partitions: bytes between the brokers", "a second"),
    ("idle.few.rss_mb", "10 partitions: memory of a broker", "MB"),
    ("idle.many.rss_mb", "1,000 partitions: memory of a broker", "MB"),
    ("idle.create_s", "1,000 partitions: created and led", "s"),
    ("cluster.restart.stop_s", "1,000 partitions: clean stop, leaders handed over", "s"),
    ("cluster.restart.clean.ready_s", "then start until the ready line", "s"),
    ("cluster.restart.clean_s", "then in sync with all partitions, since the start", "s"),
    ("cluster.restart.killed.ready_s", "after kill -9: start until the ready line", "s"),
    ("cluster.restart.killed_s", "then in sync with all partitions, since the start", "s"),
    ("failover.p50_s", "SIGKILL of a leader: writable again, median", "s"),
    ("failover.p99_s", "SIGKILL of a leader: writable again, p99", "s"),
    ("failover.max_s", "SIGKILL of a leader: writable again, longest", "s"),
)


def life_table(bench: Bench) -> Table:
    table = Table("Life of a cluster of three", ["", "median", "lowest–highest", "unit"])
    for metric, name, unit in LIFE:
        values = bench.values.get(metric)
        if values:
            spread = f"{number(min(values))}–{number(max(values))}" if len(values) > 1 else "–"
            table.rows.append([name, number(bench.value(metric)), spread, unit])
    return table


def _add_load(table: Table, bench: Bench, metric: str, name: str, client: str, server: str) -> None:
    if bench.value(f"{metric}.mb_s") is None:
        return
    cores = (bench.value(f"{metric}.{side}_cpu_share") for side in ("server", "client"))
    table.rows.append(
        [
            name,
            client,
            server,
            number(bench.value(f"{metric}.mb_s")),
            number(bench.value(f"{metric}.msg_s")),
            number(bench.value(f"{metric}.cpu_ms_mb")),
            number(bench.value(f"{metric}.cpu_us_msg")),
            " / ".join(number(value) for value in cores),
        ]
    )


def latency_table(bench: Bench) -> Table:
    table = Table("One 100-byte message at a time", ["server", "p50 µs", "p99 µs", "CPU µs each"])
    rows = [
        ("latency.moldau", "moldau, acks=1, flush=never"),
        ("latency.mock", "librdkafka's mock"),
        ("lone.never", "moldau, acks=all, flush=never"),
        ("lone.always", "moldau, acks=all, flush=always"),
        ("http.one", "moldau over HTTP, acks=all, flush=never"),
        ("cluster.lone.never", "moldau × 3, acks=all, flush=never"),
        ("cluster.lone.always", "moldau × 3, acks=all, flush=always"),
    ]
    for metric, name in rows:
        if bench.value(f"{metric}.p50_us") is not None:
            keys = ("p50_us", "p99_us", "cpu_us_msg")
            table.rows.append([name, *(number(bench.value(f"{metric}.{key}")) for key in keys)])
    disk = bench.value("fdatasync.p50_us")
    if disk is not None:
        table.rows.append(["write + fdatasync, zero-filled file", number(disk), "–", "–"])
    return table


def client_table(bench: Bench) -> Table:
    """The Python client and what it stands on, in turns within one process."""
    table = Table(
        "Python client against confluent-kafka, 100 B, in turns on one handle",
        ["call", "confluent-kafka µs", "moldau µs", "ratio", "lowest–highest", "CPU ratio"],
    )
    for load, name in (
        ("send", "Producer.send"),
        ("async-send", "AsyncProducer.send"),
        ("poll", "Consumer.poll, a message"),
        ("async-poll", "AsyncConsumer.poll, a message"),
    ):
        ratios = bench.values.get(f"client.{load}.ratio")
        if ratios:
            keys = ("base_us", "ours_us", "ratio")
            row = [number(bench.value(f"client.{load}.{key}")) for key in keys]
            spread = f"{number(min(ratios))}–{number(max(ratios))}"
            cpu = number(bench.value(f"client.{load}.cpu_ratio"))
            table.rows.append([name, *row, spread, cpu])
    return table


def start_table(bench: Bench) -> Table:
    table = Table("Start and restart", ["", "wall s", "CPU s"])
    rows = (
        ("empty directory", "start.ready_s", "start.cpu_s"),
        ("log of a killed broker", "restart.killed_s", "restart.killed_cpu_s"),
        ("log of a stopped broker", "restart.clean_s", "restart.clean_cpu_s"),
    )
    for name, wall, cpu in rows:
        if bench.value(wall) is not None:
            table.rows.append([name, number(bench.value(wall)), number(bench.value(cpu))])
    return table


def peers_table(bench: Bench) -> Table:
    table = Table(
        "Other systems on the same load (6 streams, on disk; MB/s, server CPU ms/MB in brackets)",
        [
            "server",
            "durability",
            "produce 1 KiB",
            "produce 100 B",
            "consume 1 KiB",
            "consume 100 B",
            "one at a time p50/p99 µs",
        ],
    )
    systems = [
        ("moldau", "moldau, 1 MB batches", "flush=never"),
        ("moldau-16KB", "moldau, 16 KB batches", "flush=never"),
        ("moldau-always", "moldau, 1 MB batches", "flush=always"),
        ("moldau-always-16KB", "moldau, 16 KB batches", "flush=always"),
        *((peer.key, peer.name, peer.durability) for peer in PEERS),
    ]
    for key, name, durability in systems:
        if bench.value(f"peers.produce.1024.{key}.mb_s") is None:
            continue
        row = [name, durability]
        for load in ("produce.1024", "produce.100", "consume.1024", "consume.100"):
            metric = f"peers.{load}.{key}"
            rate, cost = bench.value(f"{metric}.mb_s"), bench.value(f"{metric}.cpu_ms_mb")
            row.append(f"{number(rate)} ({number(cost)})")
        latency = f"peers.latency.{key}"
        p50, p99 = bench.value(f"{latency}.p50_us"), bench.value(f"{latency}.p99_us")
        row.append("–" if p50 is None else f"{number(p50)} / {number(p99)}")
        table.rows.append(row)
    return table


def tables(bench: Bench, *, with_kafka: bool = True) -> list[Table]:
    made: tuple[Callable[[Bench], Table], ...] = (
        targets_table,
        loads_table,
        cluster_table,
        latency_table,
        client_table,
        start_table,
        life_table,
        peers_table,
    )
    if with_kafka:
        made = (*made, beside_table, kafka_targets_table)
    return [table for table in (make(bench) for make in made) if table.rows]


def print_tables(bench: Bench) -> None:
    # Wide enough for the tables when the output is a file: a wrapped cell cannot be searched for.
    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in tables(bench):
        shown = RichTable(title=table.title, title_justify="left")
        for column in table.columns:
            shown.add_column(column, overflow="fold")
        for row in table.rows:
            style = {"MISSED": "red", "met": "green"}.get(row[-1])
            shown.add_row(*row, style=style)
        console.print(shown)
    for note in notes(bench):
        console.print(f"• {note}", highlight=False)


def notes(bench: Bench) -> list[str]:
    found = [
        "Medians of the repetitions; systems that are compared take turns within one run.",
        "MB/s on a machine with few cores mostly measures the client; CPU ms/MB is the server's, "
        "of all its threads and children, over the load alone.",
        "librdkafka (C) is confluent-kafka's own library, called with prepared arrays; "
        "confluent-kafka is Producer.produce_batch and Consumer.consume, bound by Python objects; "
        "raw sockets send prepared frames. Other systems are driven by raw sockets.",
        *bench.notes,
    ]
    found += warmth(bench)
    other = bench.value("other_cpu_share")
    if other is not None:
        highest = max(bench.values["other_cpu_share"])
        found.append(
            f"Other programs (and the kernel's own threads) used {other:.0%} of the machine during "
            f"the median load, {highest:.0%} during the worst."
        )
    return found


# --- files ----------------------------------------------------------------------------------------


def as_json(bench: Bench, command: str) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine(bench.versions),
        "targets": [
            {
                "name": target.name,
                "metric": target.metric,
                "limit": target.limit,
                "at_least": target.at_least,
                "unit": target.unit,
                "value": value,
                "met": met,
            }
            for target, value, met in verdicts(bench)
        ],
        "values": dict(bench.values),
        "notes": notes(bench),
    }


def write_json(bench: Bench, path: Path, command: str) -> None:
    path.write_text(json.dumps(as_json(bench, command), indent=1) + "\n")


def markdown(bench: Bench, command: str) -> str:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    parts = [f"Measured on {today} with `{command}`.", ""]
    parts += [f"- {key}: {value}" for key, value in machine(bench.versions).items()]
    for table in tables(bench, with_kafka=False):
        parts += ["", f"### {table.title}", "", *table.markdown()]
    parts += ["", "### How to read this", "", *(f"- {note}" for note in notes(bench))]
    return "\n".join(parts)


def is_general(metric: str) -> bool:
    """Whether a figure belongs to the measured part that has no Kafka."""
    return not metric.startswith(METRICS) and metric != "other_cpu_share"


def write_docs(bench: Bench, command: str, path: Path = DOCS_PATH) -> None:
    """Replace what stands between two markers; the rest of the page is written by people.

    What is compared with Apache Kafka has markers of its own: each part stays as it is when
    nothing of it was measured.
    """
    if any(is_general(metric) for metric in bench.values):
        page = path.read_text() if path.exists() else DOCS_NEW
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(replace_between(page, BEGIN, END, markdown(bench, command), path.name))
    write_kafka_docs(bench, command, notes(bench), path)
