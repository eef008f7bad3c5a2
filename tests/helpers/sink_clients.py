"""Sink clients of tests: those of the product live as long as their process."""

from collections.abc import Iterator
from contextlib import contextmanager

from moldau.spark.sink.sink_client import SinkClient
from moldau.spark.sink.write_options import WriteOptions


@contextmanager
def sink_client(options: WriteOptions) -> Iterator[SinkClient]:
    client = SinkClient(options)
    try:
        yield client
    finally:
        close(client)


def close(client: SinkClient) -> None:
    client.data.close()
    client._client.close()
