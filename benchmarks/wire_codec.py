"""Micro-benchmark of the Kafka codec: CPU time per operation, beside kio and kafka-python.

Run: python benchmarks/wire_codec.py [--seconds 0.3] [--own-only]
Prints one row per operation: the best of several rounds, in microseconds of thread CPU.
"""

import argparse
import io
import time
from collections.abc import Callable

from moldau.wire.framing import frame_response, read_request_header
from moldau.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    FetchTopic,
)
from moldau.wire.messages.metadata import (
    MetadataBroker,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
    ProduceTopic,
)

Operation = Callable[[], object]
KIB = 1024


def measure_us(operation: Operation, seconds: float) -> float:
    """CPU microseconds per call: the best of five rounds, so that noise only ever adds."""
    operation()
    calls = 1
    while True:
        begun = time.thread_time()
        for _ in range(calls):
            operation()
        spent = time.thread_time() - begun
        if spent > seconds / 10:
            break
        calls *= 2
    best = spent / calls
    for _ in range(4):
        begun = time.thread_time()
        for _ in range(calls):
            operation()
        best = min(best, (time.thread_time() - begun) / calls)
    return best * 1e6


def produce_request(size: int) -> memoryview:
    partition = ProducePartition(index=0, records=bytes(size))
    topic = ProduceTopic(name="measurements", partitions=[partition])
    request = ProduceRequest(acks=-1, timeout_ms=30000, topics=[topic])
    return memoryview(b"".join(request.encode(9)))  # type: ignore[arg-type]


def fetch_request(count: int, version: int) -> memoryview:
    partitions = [
        FetchPartition(partition=i, fetch_offset=1000, partition_max_bytes=1 << 20)
        for i in range(count)
    ]
    topic = FetchTopic(topic="measurements", topic_id=b"i" * 16, partitions=partitions)
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic])
    return memoryview(b"".join(request.encode(version)))  # type: ignore[arg-type]


def produce_response() -> list[object]:
    partition = ProduceResponsePartition(index=0, base_offset=123456, log_start_offset=0)
    topic = ProduceResponseTopic(name="measurements", partitions=[partition])
    return list(frame_response(0, 9, 7, ProduceResponse(topics=[topic]).encode(9)))


def fetch_response(count: int, records: bytes | None) -> list[object]:
    partitions = [
        FetchResponsePartition(
            partition_index=i,
            high_watermark=100,
            last_stable_offset=100,
            log_start_offset=0,
            records=records,
        )
        for i in range(count)
    ]
    topic = FetchResponseTopic(topic_id=b"i" * 16, partitions=partitions)
    return list(frame_response(1, 13, 7, FetchResponse(topics=[topic]).encode(13)))


def metadata_response() -> list[object]:
    topics = [
        MetadataResponseTopic(
            name=f"topic-{t}",
            topic_id=b"i" * 16,
            partitions=[
                MetadataResponsePartition(
                    partition_index=p,
                    leader_id=1,
                    leader_epoch=3,
                    replica_nodes=[1, 2, 3],
                    isr_nodes=[1, 2, 3],
                )
                for p in range(10)
            ],
        )
        for t in range(100)
    ]
    brokers = [MetadataBroker(node_id=i, host="127.0.0.1", port=9092 + i) for i in range(3)]
    response = MetadataResponse(brokers=brokers, topics=topics, cluster_id="c", controller_id=1)
    return list(frame_response(3, 12, 7, response.encode(12)))


def own_operations() -> dict[str, Operation]:
    small, large = produce_request(16 * KIB), produce_request(KIB * KIB)
    one, many = fetch_request(1, 13), fetch_request(50, 13)
    header = memoryview(b"\0\0\0\x09\0\0\0\x05\0\x07rdkafka\0" + bytes(small))
    megabyte = bytes(KIB * KIB)
    return {
        "read request header, Produce v9": lambda: read_request_header(header),
        "decode Produce v9, 16 KiB": lambda: ProduceRequest.decode(small, 9),
        "decode Produce v9, 1 MiB": lambda: ProduceRequest.decode(large, 9),
        "build + encode + frame ProduceResponse v9": produce_response,
        "decode Fetch v13, 1 partition": lambda: FetchRequest.decode(one, 13),
        "decode Fetch v13, 50 partitions": lambda: FetchRequest.decode(many, 13),
        "build + encode + frame FetchResponse v13, 1 MiB": lambda: fetch_response(1, megabyte),
        "build + encode + frame FetchResponse v13, 50 empty": lambda: fetch_response(50, None),
        "build + encode + frame Metadata v12, 100 x 10": metadata_response,
    }


def other_operations() -> dict[str, dict[str, Operation]]:
    """Decoding and encoding of the same bytes by the libraries that serve as test oracles."""
    from kafka.protocol.consumer.fetch import FetchRequest as OtherFetchRequest
    from kafka.protocol.metadata.metadata import MetadataResponse as OtherMetadata
    from kafka.protocol.producer.produce import ProduceRequest as OtherProduceRequest
    from kio.index import load_request_schema, load_response_schema
    from kio.serial import entity_reader, entity_writer

    small, large = bytes(produce_request(16 * KIB)), bytes(produce_request(KIB * KIB))
    one, many = bytes(fetch_request(1, 13)), bytes(fetch_request(50, 13))
    read_produce = entity_reader(load_request_schema(0, 9))
    read_fetch = entity_reader(load_request_schema(1, 13))
    schema = load_response_schema(3, 12)
    body = b"".join(metadata_response())[9:]  # type: ignore[arg-type]
    kio_metadata, _ = entity_reader(schema)(body, 0)
    write_metadata = entity_writer(schema)
    other_metadata = OtherMetadata.decode(body, version=12)
    other_metadata._header = None
    return {
        "decode Produce v9, 16 KiB": {
            "kio": lambda: read_produce(small, 0),
            "kafka-python": lambda: OtherProduceRequest.decode(small, version=9),
        },
        "decode Produce v9, 1 MiB": {
            "kio": lambda: read_produce(large, 0),
            "kafka-python": lambda: OtherProduceRequest.decode(large, version=9),
        },
        "decode Fetch v13, 1 partition": {
            "kio": lambda: read_fetch(one, 0),
            "kafka-python": lambda: OtherFetchRequest.decode(one, version=13),
        },
        "decode Fetch v13, 50 partitions": {
            "kio": lambda: read_fetch(many, 0),
            "kafka-python": lambda: OtherFetchRequest.decode(many, version=13),
        },
        "build + encode + frame Metadata v12, 100 x 10": {
            "kio": lambda: write_metadata(io.BytesIO(), kio_metadata),
            "kafka-python": lambda: other_metadata.encode(version=12),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="CPU time per operation")
    parser.add_argument("--own-only", action="store_true", help="leave the other libraries out")
    options = parser.parse_args()
    others = {} if options.own_only else other_operations()
    print(f"{'µs per operation (thread CPU)':52} {'moldau':>9} {'kio':>9} {'kafka-python':>13}")
    for name, operation in own_operations().items():
        row = f"{name:52} {measure_us(operation, options.seconds):9.2f}"
        for library, width in (("kio", 9), ("kafka-python", 13)):
            other = others.get(name, {}).get(library)
            text = "" if other is None else f"{measure_us(other, options.seconds):.2f}"
            row += f" {text:>{width}}"
        print(row)


if __name__ == "__main__":
    main()
