"""librdkafka through ctypes: the library that confluent-kafka ships, without Python per message.

confluent-kafka builds a Python object per message and thereby measures itself. The loads here
hand librdkafka arrays of messages that were prepared beforehand (`rd_kafka_produce_batch`), so that
one Python call moves thousands of them, and the broker or the C library is the limit. The mock
cluster is librdkafka's own in-memory broker, in a process of its own like any other server.
"""

from __future__ import annotations

import ctypes
import importlib.util
import time
from pathlib import Path
from typing import Any

RD_KAFKA_PRODUCER = 0
EVENT_DELIVERY_REPORT = 0x1
PENDING_BYTES_MAX = 64_000_000


class LibrdkafkaError(Exception):
    """librdkafka is not there, or refused something; the text is its own."""


class Message(ctypes.Structure):
    """`rd_kafka_message_t`, a part of librdkafka's public binary interface."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("opaque", ctypes.c_void_p),
    )


def library_path() -> Path:
    """Where the installed confluent-kafka keeps its librdkafka."""
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise LibrdkafkaError("confluent-kafka is not installed")
    beside = Path(spec.origin).parent.parent / "confluent_kafka.libs"
    found = sorted(beside.glob("librdkafka*.so*"))
    if not found:
        raise LibrdkafkaError(f"no librdkafka in {beside}: confluent-kafka is not a binary wheel")
    return found[0]


def load() -> Any:
    """The library with the types of every function that is used."""
    # The module loads the library's own dependencies (libssl, libsasl2) by their bundled names.
    import confluent_kafka  # noqa: F401

    lib = ctypes.CDLL(str(library_path()))
    pointer, text, integer = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (integer, [pointer, text, text, text, ctypes.c_size_t]),
        "rd_kafka_conf_set_events": (None, [pointer, integer]),
        "rd_kafka_new": (pointer, [integer, pointer, text, ctypes.c_size_t]),
        "rd_kafka_destroy": (None, [pointer]),
        "rd_kafka_topic_new": (pointer, [pointer, text, pointer]),
        "rd_kafka_topic_destroy": (None, [pointer]),
        "rd_kafka_produce_batch": (
            integer,
            [pointer, ctypes.c_int32, integer, ctypes.POINTER(Message), integer],
        ),
        "rd_kafka_flush": (integer, [pointer, integer]),
        "rd_kafka_outq_len": (integer, [pointer]),
        "rd_kafka_queue_get_main": (pointer, [pointer]),
        "rd_kafka_queue_poll": (pointer, [pointer, integer]),
        "rd_kafka_queue_destroy": (None, [pointer]),
        "rd_kafka_event_type": (integer, [pointer]),
        "rd_kafka_event_message_count": (ctypes.c_size_t, [pointer]),
        "rd_kafka_event_message_next": (ctypes.POINTER(Message), [pointer]),
        "rd_kafka_event_destroy": (None, [pointer]),
        "rd_kafka_message_latency": (ctypes.c_int64, [ctypes.POINTER(Message)]),
        "rd_kafka_err2str": (text, [integer]),
        "rd_kafka_version_str": (text, []),
        "rd_kafka_mock_cluster_new": (pointer, [pointer, integer]),
        "rd_kafka_mock_cluster_bootstraps": (text, [pointer]),
        "rd_kafka_mock_topic_create": (integer, [pointer, text, integer, integer]),
        "rd_kafka_mock_cluster_destroy": (None, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def new_handle(lib: Any, config: dict[str, str], *, delivery_events: bool) -> int:
    reason = ctypes.create_string_buffer(512)
    conf = lib.rd_kafka_conf_new()
    for key, value in config.items():
        if lib.rd_kafka_conf_set(conf, key.encode(), value.encode(), reason, 512):
            raise LibrdkafkaError(reason.value.decode())
    if delivery_events:
        lib.rd_kafka_conf_set_events(conf, EVENT_DELIVERY_REPORT)
    handle = lib.rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, 512)
    if not handle:
        raise LibrdkafkaError(reason.value.decode())
    return int(handle)


class BulkProducer:
    """Sends equal messages, thousands per call, to the partitions of a topic in turn."""

    def __init__(self, config: dict[str, str], topic: str, *, size: int, chunk: int) -> None:
        self._lib = load()
        # Only failures are reported: a report per message would be Python work per message.
        self._handle = new_handle(
            self._lib, {**config, "delivery.report.only.error": "true"}, delivery_events=True
        )
        self._events = self._lib.rd_kafka_queue_get_main(self._handle)
        self._topic = self._lib.rd_kafka_topic_new(self._handle, topic.encode(), None)
        # One body for all: librdkafka neither copies nor frees it before it writes the request.
        self._payload = ctypes.create_string_buffer(b"m" * size, size)
        self._pending_max = max(chunk, PENDING_BYTES_MAX // size)
        self._messages = (Message * chunk)()
        for message in self._messages:
            message.payload = ctypes.addressof(self._payload)
            message.len = size
        self.failed = 0

    def send(self, partition: int, count: int) -> None:
        """Queue `count` (at most the chunk) messages; waits while too many are unacknowledged."""
        lib = self._lib
        while lib.rd_kafka_outq_len(self._handle) + count > self._pending_max:
            time.sleep(0.0005)
        queued = lib.rd_kafka_produce_batch(self._topic, partition, 0, self._messages, count)
        if queued < count:
            errors = {message.err for message in self._messages[:count]} - {0}
            raise LibrdkafkaError(lib.rd_kafka_err2str(min(errors, default=0)).decode())

    def flush(self, seconds_max: float) -> None:
        deadline = time.perf_counter() + seconds_max
        while self._lib.rd_kafka_outq_len(self._handle) > 0:
            self._lib.rd_kafka_flush(self._handle, 5)
            self._count_failures()
            if time.perf_counter() > deadline:
                raise LibrdkafkaError(f"messages still unacknowledged after {seconds_max} s")
        self._count_failures()

    def _count_failures(self) -> None:
        lib = self._lib
        while event := lib.rd_kafka_queue_poll(self._events, 0):
            if lib.rd_kafka_event_type(event) == EVENT_DELIVERY_REPORT:
                while message := lib.rd_kafka_event_message_next(event):
                    if message.contents.err:
                        self.failed += 1
            lib.rd_kafka_event_destroy(event)

    def close(self) -> None:
        self._lib.rd_kafka_topic_destroy(self._topic)
        self._lib.rd_kafka_queue_destroy(self._events)
        self._lib.rd_kafka_destroy(self._handle)


class MockCluster:
    """librdkafka's in-memory broker: keeps the last few MB of each partition and no file."""

    def __init__(self, topics: dict[str, int]) -> None:
        self._lib = load()
        self._handle = new_handle(self._lib, {"log_level": "0"}, delivery_events=False)
        self._cluster = self._lib.rd_kafka_mock_cluster_new(self._handle, 1)
        for topic, partitions in topics.items():
            error = self._lib.rd_kafka_mock_topic_create(
                self._cluster, topic.encode(), partitions, 1
            )
            if error:
                raise LibrdkafkaError(self._lib.rd_kafka_err2str(error).decode())
        self.bootstrap: str = self._lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def close(self) -> None:
        self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
        self._lib.rd_kafka_destroy(self._handle)


def serve_mock() -> None:
    """Run a mock cluster until standard input ends; prints its address."""
    import sys

    partitions = int(sys.argv[1])
    cluster = MockCluster({"bench": partitions})
    print(cluster.bootstrap, flush=True)
    sys.stdin.read()
    cluster.close()


if __name__ == "__main__":
    serve_mock()
