"""Transactional produce against idempotent produce, with batches of the same size.

A transaction is over before the same producer begins the next, so one producer waits most of the
time, and for its client more than for the broker: librdkafka's own mock, which stores nothing,
shows how much. Eight producers at once show what the broker does with transactions.

Internal topics are flushed under every policy. So the pair that is equally durable is the one with
`flush=always`, a broker's default; with `never` the idempotent half waits for no disk at all.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Producer

from benchmarks import servers
from benchmarks.bench import Bench, Target, topic
from benchmarks.clients.transactions import (
    MESSAGE,
    MESSAGES,
    WAIT_SECONDS_MAX,
    one_transaction,
    settings,
)
from benchmarks.harness import BenchmarkError, free_port

PRODUCERS = 8
FLUSHES = ("always", "never")
STEPS = 2 * (1 + len(FLUSHES))
SECONDS, SECONDS_QUICK = 4.0, 2.0
PIPELINED_MAX = 5 * MESSAGES


def run(bench: Bench) -> None:
    for count in (1, PRODUCERS):
        with _servers(bench) as running:
            for turn in range(bench.repetitions):
                for server, target in running.items():
                    if turn and server == "mock":
                        continue
                    bench.step(f"{server}: {count} transactional, then {count} idempotent")
                    _compare(bench, server, target, count, turn)
                    if not turn:
                        bench.done()
    ours, client = (
        bench.value("transactions.always.1.ratio"),
        bench.value("transactions.mock.1.ratio"),
    )
    bench.note(
        f"Transactions of one producer: {ours:.2f} × its idempotent throughput with flush=always, "
        f"{client:.2f} × against librdkafka's mock, where only the client takes time."
    )


@contextlib.contextmanager
def _servers(bench: Bench) -> Iterator[dict[str, Target]]:
    with contextlib.ExitStack() as stack:
        running: dict[str, Target] = {
            flush: stack.enter_context(
                servers.moldau(
                    bench.directory,
                    flush=flush,
                    settings={
                        "MOLDAU_RAFT__ADDR": f"127.0.0.1:{free_port()}",
                        "MOLDAU_HTTP__ADDR": f"127.0.0.1:{free_port()}",
                        "MOLDAU_GRPC__ADDR": "127.0.0.1:0",
                    },
                    name=f"transactions-{flush}",
                )
            )
            for flush in FLUSHES
        }
        running["mock"] = stack.enter_context(servers.mock_cluster(bench.directory, PRODUCERS))
        yield running


def _compare(bench: Bench, server: str, running: Target, count: int, turn: int) -> None:
    seconds = SECONDS_QUICK if bench.quick else SECONDS
    name = f"transactions.{server}.{count}"
    rates = {}
    made = contextlib.nullcontext("bench") if server == "mock" else topic(running, count)
    with made as topic_name:
        for kind, work in (("transactional", _transact), ("idempotent", _produce)):
            used = running.server.cpu_seconds()
            sent = _sent(work, running.bootstrap, topic_name, count, seconds, turn)
            used = running.server.cpu_seconds() - used
            rates[kind] = sent / seconds
            bench.record(f"{name}.{kind}.messages_s", rates[kind])
            bench.record(f"{name}.{kind}.cpu_us", 1e6 * used / max(1, sent // MESSAGES))
    bench.record(f"{name}.ratio", rates["transactional"] / rates["idempotent"])


Ready = Callable[[], object]
Work = Callable[[str, str, int, str, float, Ready], int]


def _sent(work: Work, address: str, name: str, count: int, seconds: float, turn: int) -> int:
    """Messages of all producers, which begin together."""
    done = [0] * count
    failures: list[BaseException] = []
    together = threading.Barrier(count)

    def one(number: int) -> None:
        own = f"{name}-{count}-{turn}-{number}"
        try:
            done[number] = work(address, name, number, own, seconds, together.wait)
        except BaseException as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise BenchmarkError(f"a producer failed: {failures[0]}")
    return sum(done)


def _transact(
    address: str, name: str, partition: int, own: str, seconds: float, ready: Ready
) -> int:
    producer = Producer({**settings(address), "transactional.id": own})
    producer.init_transactions(WAIT_SECONDS_MAX)
    one_transaction(producer, name, partition)
    ready()
    sent = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        one_transaction(producer, name, partition)
        sent += MESSAGES
    return sent


def _produce(
    address: str, name: str, partition: int, own: str, seconds: float, ready: Ready
) -> int:
    producer = Producer(settings(address))
    for _ in range(MESSAGES):
        producer.produce(name, MESSAGE, partition=partition)
    producer.flush(WAIT_SECONDS_MAX)
    ready()
    sent = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(MESSAGES):
            producer.produce(name, MESSAGE, partition=partition)
        sent += MESSAGES
        while len(producer) >= PIPELINED_MAX:
            producer.poll(0.001)
    left = producer.flush(WAIT_SECONDS_MAX)
    return sent - left
