"""Messages that the console saves as CSV are those of the topic, also when read by others."""

import csv
import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from console_page import Console, console
from playwright.sync_api import Browser

from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

TOPIC, PARTITIONS = "exported", 3
SHOWN_MAX = 64 * 1024
"""Bytes of a value in a list; longer ones are cut."""

Header = tuple[str, bytes | None]


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp: int


TEXTS = (
    'say "hi"',
    '"',
    "a,b;c\td",
    "two\nlines",
    "carriage\r\nreturn, and \r alone",
    " blanks ",
    "Überraschung € 🎉",
    "null",
    # Numbers that a float would round.
    "9223372036854775807",
    "-9223372036854775808",
    '{"n": 9223372036854775807, "m": -9007199254740993, "f": 0.1000000000000000055}',
    "-1.5e-7",
)
FORMULAS = (
    "=1+1",
    '=HYPERLINK("http://x","y")',
    "+1",
    "-1+cmd|' /C calc'!A0",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "'=1",
    "''+1",
    "'quoted'",
)
BYTES = (b"\xff\x00\xfe", b"=1\xff")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"GROUP__OFFSETS_PARTITIONS": "3"}) as started:
        with KafkaClient(started.bootstrap) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        yield started


def fill(cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    texts = [one.encode() for one in (*TEXTS, *FORMULAS)]
    headers: list[tuple[str, str | bytes | None]] = [
        ('quoted "name", =1', b"a,\nb"),
        ("bytes", b"\xff"),
        ("none", None),
    ]
    for number, sent in enumerate((*texts, *BYTES)):
        partition = number % PARTITIONS
        producer.produce(TOPIC, sent, partition=partition)
        producer.produce(TOPIC, b"v", key=sent, partition=partition, headers=headers)
    producer.produce(TOPIC, None, key=b"tombstone", partition=0)
    producer.produce(TOPIC, b"", key=b"empty", partition=1)
    producer.produce(TOPIC, b'"=' + b"x" * SHOWN_MAX, key=b"large", partition=2)
    assert producer.flush() == 0


def read(cluster: Cluster) -> dict[tuple[int, int], Row]:
    """The topic, by a client of its own."""
    found: dict[tuple[int, int], Row] = {}
    ended: set[int] = set()
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "r"}
    reader = Consumer({**settings, "enable.partition.eof": True})
    reader.assign([TopicPartition(TOPIC, one, OFFSET_BEGINNING) for one in range(PARTITIONS)])

    def is_read() -> bool:
        message: Message | None = reader.poll(0.1)
        if message is not None and message.error() is not None:
            ended.add(message.partition() or 0)
        elif message is not None:
            place = (message.partition() or 0, message.offset() or 0)
            headers: Any = message.headers() or []
            stamp = message.timestamp()[1]
            found[place] = Row(message.key(), message.value(), headers, stamp)
        return len(ended) == PARTITIONS

    wait_until(is_read, "all is read")
    reader.close()
    return found


def unguarded(cell: str) -> str:
    """Without the ' that keeps a spreadsheet from running it."""
    rest = cell.removeprefix("'")
    return rest if rest != cell and rest.lstrip("'")[:1] in set("=+-@\t\r") else cell


def content(line: dict[str, str], column: str) -> bytes | None:
    if line[f"{column}_base64"]:
        return b64decode(line[f"{column}_base64"])
    # No key of the topic is empty.
    is_null = line["kind"] == "tombstone" if column == "value" else line["key"] == ""
    return None if is_null else unguarded(line[column]).encode()


def header(name: str, shown: Any) -> Header:
    if isinstance(shown, dict):
        return name, b64decode(shown["base64"])
    return name, None if shown is None else shown.encode()


def saved(tab: Console) -> list[dict[str, str]]:
    with tab.page.expect_download() as saving:
        tab.click("CSV")
    assert saving.value.suggested_filename == f"{TOPIC}.csv"
    with saving.value.path().open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def test_a_topic_is_saved_as_csv_that_others_read(browser: Browser, cluster: Cluster) -> None:
    fill(cluster)
    stored = read(cluster)
    with console(browser, cluster.brokers[3].http_address) as tab:
        tab.open(f"/topics/{TOPIC}?tab=messages&from=oldest")
        tab.see("Searched all.")
        tab.see(f"{len(stored)} messages found")
        lines = saved(tab)
    assert len(lines) == len(stored)
    cut: list[bytes | None] = []
    for line in lines:
        row = stored.pop((int(line["partition"]), int(line["offset"])))
        value = content(line, "value")
        if line["is_cut"] == "true":
            assert int(line["value_bytes"]) == len(row.value or b"")
            value, row = None, row._replace(value=None)
            cut.append(row.key)
        headers = [header(*one) for one in json.loads(line["headers"])]
        assert Row(content(line, "key"), value, headers, int(line["timestamp"])) == row
    assert stored == {}
    assert cut == [b"large"]
    # As a spreadsheet sees them: nothing to run, and numbers as numbers.
    cells = {cell for line in lines for cell in line.values()}
    assert not {cell for cell in cells if cell[:1] in set("=+@\t\r")}
    assert {cell for cell in cells if cell[:1] == "-"} == {"-9223372036854775808", "-1.5e-7"}
