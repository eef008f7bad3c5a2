"""Known class: buffers that are reused across topics: bytes of one in an answer about another.

The broker reads all connections into shared and pooled buffers, and batches stay views of them
until they are stored. Every record says here which topic, writer and number it is of, in every
part of it; clients of all topics write and read at the same time, in requests of all sizes, some
of which are cut off in the middle.
"""

import random
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest
from chunks import in_memory, joined
from raw_client import RawClient, batch, batches, produce_request, records
from secured_broker import ManyListeners
from tls_world import TlsWorld
from transaction_client import Client as TransactionalClient

from moldau.client.security import Security, Tls
from moldau.model.errors import ErrorCode
from moldau.records.compression import Codec
from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.framing import frame_request
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

pytestmark = pytest.mark.system

TOPICS = 6
ROUNDS = 25
SIZES = (1, 100, 5_000, 70_000, 300_000, 1_200_000)
"""Smaller than the shared buffer, larger, and of several classes of the pool."""


def content(topic: str, number: int, size: int) -> bytes:
    """Readable as of this topic at any place: the mark is shorter than any part that is checked."""
    mark = f"<{topic}:{number}>".encode()
    return (mark * (size // len(mark) + 1))[: max(size, len(mark))]


def is_of(value: bytes, topic: str) -> bool:
    first = value[: value.index(b">") + 1]
    name, _, _ = first.strip(b"<>").partition(b":")
    whole = (first * (len(value) // len(first) + 1))[: len(value)]
    return name == topic.encode() and value == whole
