"""`moldau bench`: options, the temporary topic, the progress bar and the report."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.messages.produce import ACKS, COMPRESSIONS
from moldau.cli.options import (
    Duration,
    Integer,
    Number,
    Properties,
    brokers_option,
    complete_topics,
    document_output_option,
    open_admin,
)
from moldau.cli.output import emit_document, progress_bar, say

if TYPE_CHECKING:
    from moldau.cli.bench.workloads import Load, Result
    from moldau.client.kafka.admin import Admin

MESSAGES_MAX = 100_000_000


@click.group(
    "bench",
    cls=LazyGroup,
    examples=(
        "moldau bench produce -n 1000000 --size 1024 --partitions 6",
        "moldau bench consume --size 100 -o json",
        "moldau bench e2e --rate 1000 --acks all",
    ),
)
def bench() -> None:
    """Measure throughput and latency, on a temporary topic."""


def _load_options(*, messages: int, linger_ms: int, acks: str) -> Callable[[Any], Any]:
    options = (
        click.option("--topic", shell_complete=complete_topics,
                     help="Use this topic (created if missing), and keep it."),
        click.option("-n", "--count", "messages", type=Integer(1, MESSAGES_MAX), default=messages,
                     show_default=True, help="Number of messages."),
        click.option("-s", "--size", type=Integer(1, 64 * 1024 * 1024), default=1024,
                     show_default=True, help="Size of each message in bytes."),
        click.option("-p", "--partitions", type=Integer(1, 1000), default=6,
                     show_default=True),
        click.option("--acks", type=click.Choice(ACKS), default=acks, show_default=True),
        click.option("--batch-bytes", type=Integer(1), default=1_000_000,
                     show_default=True, help="Batch size of the producer."),
        click.option("--linger-ms", type=Number(0), default=linger_ms,
                     show_default=True, help="How long a batch waits for more messages."),
        click.option("--compression", type=click.Choice(COMPRESSIONS), default="none",
                     show_default=True),
        click.option("--time-max", type=Duration(), default="60s", show_default=True,
                     help="Stop after this."),
        document_output_option,
        brokers_option,
    )  # fmt: skip

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@bench.command(
    "produce",
    examples=(
        "moldau bench produce",
        "moldau bench produce --size 100 --batch-bytes 16384 --acks 1",
        "moldau bench produce --compression zstd -o json",
    ),
)
@_load_options(messages=500_000, linger_ms=5, acks="all")
def produce(topic: str | None, partitions: int, output: str, **options: Any) -> None:
    """Send as fast as the client can."""
    from moldau.cli.bench.workloads import run_produce

    with (
        _bench_topic(topic, partitions, options) as (load, found),
        progress_bar("produce", load.messages, output != "table") as advance,
    ):
        result = run_produce(load, advance)
    _report("produce", load, found, result, output)


@bench.command(
    "consume",
    examples=(
        "moldau bench consume",
        "moldau bench consume --size 100 -n 2000000",
        "moldau bench consume --topic orders",
    ),
)
@_load_options(messages=500_000, linger_ms=5, acks="1")
def consume(topic: str | None, partitions: int, output: str, **options: Any) -> None:
    """Read as fast as the client can; a temporary topic is filled first."""
    from moldau.cli.bench.workloads import run_consume, run_produce

    with _bench_topic(topic, partitions, options) as (load, found):
        if topic is None or _is_empty(load, topic):
            with progress_bar("fill", load.messages, output != "table") as advance:
                run_produce(load, advance)
        with progress_bar("consume", load.messages, output != "table") as advance:
            result = run_consume(load, found, advance)
    _report("consume", load, found, result, output)


@bench.command(
    "e2e",
    examples=(
        "moldau bench e2e",
        "moldau bench e2e --rate 5000 -n 50000 --size 100",
        "moldau bench e2e --acks 1 --partitions 1 -o json",
    ),
)
@_load_options(messages=10_000, linger_ms=0, acks="all")
@click.option("--rate", type=Integer(0), default=1000, show_default=True,
              help="Messages per second; 0: unlimited.")  # fmt: skip
def e2e(topic: str | None, partitions: int, output: str, **options: Any) -> None:
    """Send at a steady rate and measure how long each message takes to arrive."""
    from moldau.cli.bench.workloads import run_e2e

    if topic is not None:
        raise CommandError(
            "e2e reads what it sends, and needs its temporary topic",
            hint="remove --topic",
            code=ExitCode.USAGE,
        )
    if options["size"] < 8:
        raise CommandError("--size of e2e must be at least 8, for a timestamp", code=ExitCode.USAGE)
    with (
        _bench_topic(topic, partitions, options) as (load, found),
        progress_bar("e2e", load.messages, output != "table") as advance,
    ):
        result = run_e2e(load, found, advance)
    _report("e2e", load, found, result, output)


@contextmanager
def _bench_topic(
    topic: str | None, partitions: int, options: dict[str, Any]
) -> "Iterator[tuple[Load, int]]":
    """The load and its number of partitions; a temporary topic is deleted afterwards."""
    from moldau.cli.bench.workloads import Load
    from moldau.client.errors import NotFoundError

    properties: Properties = options.pop("properties")
    options["seconds_max"] = options.pop("time_max")
    admin = open_admin(options["brokers"], properties)
    name = topic or f"moldau-bench-{os.urandom(4).hex()}"
    load = Load(topic=name, properties=properties, **options)
    if topic is not None:
        try:
            partitions = len(admin.topic(topic).partitions)
        except NotFoundError:
            admin.create_topic(topic, partitions=partitions)
        yield load, partitions
        return
    admin.create_topic(name, partitions=partitions)
    try:
        yield load, partitions
    finally:
        _delete(admin, name)


def _delete(admin: "Admin", name: str) -> None:
    from moldau.client.errors import ClientError

    try:
        admin.delete_topic(name)
    except ClientError as error:
        # Do not hide an error of the run.
        say(f"cannot delete the temporary topic {name}: {error}")


def _is_empty(load: "Load", topic: str) -> bool:
    from moldau.client.kafka.admin import Admin

    info = Admin(load.brokers, dict(load.properties)).topic(topic, offsets=True)
    return all(part.end_offset <= part.start_offset for part in info.partitions)


def _report(kind: str, load: "Load", partitions: int, result: "Result", output: str) -> None:
    latency = {
        name: result.percentile_ms(part)
        for name, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))
    }
    document = {
        "bench": kind,
        "topic": load.topic,
        "partitions": partitions,
        "size": load.size,
        "acks": load.acks,
        "compression": load.compression,
        "batch_bytes": load.batch_bytes,
        "linger_ms": load.linger_ms,
        "messages": result.messages,
        "seconds": round(result.seconds, 4),
        "messages_per_second": round(result.messages_per_second, 1),
        "megabytes_per_second": round(result.megabytes_per_second, 3),
        "client_cpu_seconds": round(result.client_cpu_seconds, 4),
        "latency_ms": {
            name: None if value is None else round(value, 3) for name, value in latency.items()
        },
        "complete": result.messages >= load.messages,
    }
    if emit_document(document, output, name=""):
        return
    click.echo(
        f"{kind}: {result.messages:,} messages of {load.size:,} B in {result.seconds:.2f} s, "
        f"{partitions} partitions, acks={load.acks}, compression={load.compression}"
    )
    click.echo(
        f"  {result.megabytes_per_second:,.1f} MB/s   {result.messages_per_second:,.0f} msg/s   "
        f"client CPU {result.client_cpu_seconds:.2f} s"
    )
    if result.latencies_ms:
        shown = "   ".join(f"{name} {value:.2f}" for name, value in latency.items() if value)
        click.echo(f"  latency ms: {shown}")
    if kind != "consume" and result.messages < load.messages:
        say(f"stopped by --time-max after {result.messages:,} of {load.messages:,} messages")
