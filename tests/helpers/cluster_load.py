"""Clients of all kinds at a cluster, each in a thread, which can be paused and made to fail."""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer

from moldau import QueueClient
from moldau.client.errors import ClientError
from moldau.spark.pipelines.spec import PipelineState, Progress
from moldau.spark.pipelines.status import PipelineStatus, StatusTopic, now_ms
from moldau.testing.cluster import Cluster

TOPIC: Final = "orders"
QUEUE: Final = "jobs"
GROUP: Final = "billing"
WORKERS: Final = "resizers"
PIPELINE: Final = "archive-orders"
_TICK_SECONDS: Final = 0.1


class Load:
    """Threads of clients; each does one thing again and again, and may be paused."""

    def __init__(self, cluster: Cluster, login_address: str) -> None:
        self._cluster = cluster
        self._login_address = login_address
        self._threads: list[threading.Thread] = []
        self._is_over = threading.Event()
        self._paused: set[str] = set()
        self.done: dict[str, int] = {}
        """How often each client did its thing."""
        self.pipeline_state = PipelineState.RUNNING
        self.fails_jobs = False

    def start(self) -> None:
        bodies: list[Callable[[], Iterator[None]]] = [
            self.produce, self.consume, self.transact, self.send_jobs, self.work, self.report,
            self.log_in,
        ]  # fmt: skip
        for body in bodies:
            thread = threading.Thread(target=self._repeat, args=(body.__name__, body))
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def pause(self, name: str) -> None:
        self._paused.add(name)

    def mend(self) -> None:
        """All clients go on, and succeed."""
        self._paused.clear()
        self.fails_jobs = False
        self.pipeline_state = PipelineState.RUNNING

    def _repeat(self, name: str, body: Callable[[], Iterator[None]]) -> None:
        """A client that fails, since a fault is staged, starts again."""
        while not self._is_over.is_set():
            with suppress(KafkaException, ClientError, OSError):
                for _ in body():
                    self.done[name] = self.done.get(name, 0) + 1
                    while name in self._paused and not self._is_over.wait(_TICK_SECONDS):
                        pass
                    if self._is_over.wait(_TICK_SECONDS):
                        return
            self._is_over.wait(_TICK_SECONDS)

    def _client(self, **settings: str | int | bool) -> dict[str, str | int | bool]:
        return {"bootstrap.servers": self._cluster.bootstrap, **_names(settings)}

    def produce(self) -> Iterator[None]:
        producer = Producer(self._client())
        while True:
            for _ in range(20):
                producer.produce(TOPIC, b"x" * 100)
            producer.poll(0)
            yield

    def consume(self) -> Iterator[None]:
        settings = self._client(
            group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
        )
        consumer = Consumer(settings)
        try:
            consumer.subscribe([TOPIC])
            while True:
                if consumer.consume(5000, 0.05):
                    consumer.commit(asynchronous=False)
                yield
        finally:
            consumer.close()

    def transact(self) -> Iterator[None]:
        producer = Producer(
            self._client(transactional_id="payments", transaction_timeout_ms=600_000)
        )
        producer.init_transactions(10)
        while True:
            producer.begin_transaction()
            producer.produce(TOPIC, b"in a transaction")
            producer.flush(10)
            # Paused here it hangs.
            yield
            producer.commit_transaction(10)

    def send_jobs(self) -> Iterator[None]:
        with self._queues() as client:
            while True:
                client.send_many(QUEUE, [b"resize"] * 5)
                yield

    def work(self) -> Iterator[None]:
        """One of five is delivered a second time."""
        with (
            self._queues() as client,
            client.connect(WORKERS, QUEUE, attempts=2, backoff=0.1) as worker,
        ):
            while True:
                for number, message in enumerate(worker.poll(max_messages=100, wait=0.1)):
                    with suppress(ClientError):
                        is_first = message.attempt == 1
                        if self.fails_jobs or (is_first and number % 5 == 0):
                            message.nack(reason="staged")
                        else:
                            message.ack()
                yield

    def report(self) -> Iterator[None]:
        """As a pipeline does."""
        with StatusTopic(self._cluster.bootstrap) as topic:
            batch = 0
            while True:
                batch += 1
                progress = Progress(batch=batch, rows=batch * 100, lag=7)
                topic.publish(
                    PipelineStatus(
                        name=PIPELINE,
                        kind="archive",
                        state=self.pipeline_state,
                        progress=progress,
                        started_at=now_ms(),
                        updated_at=now_ms(),
                    )
                )
                yield

    def log_in(self) -> Iterator[None]:
        """With a wrong password."""
        request = urllib.request.Request(
            f"http://{self._login_address}/api/v1/topics",
            headers={"Authorization": "Basic bm9ib2R5Ondyb25n"},
        )
        while True:
            with suppress(urllib.error.HTTPError):
                urllib.request.urlopen(request, timeout=10).close()
            yield

    def _queues(self) -> QueueClient:
        return QueueClient([broker.grpc_address for broker in self._cluster.brokers], timeout=10)


def _names(settings: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
    return {name.replace("_", "."): value for name, value in settings.items()}
