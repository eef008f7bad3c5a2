"""Records in and out over HTTP, through real brokers."""

import base64
import json

import confluent_kafka
import pytest

from http_client import ask
from moldau.api.record_producer import build_batches
from moldau.edge.http import produce
from moldau.edge.http.record_json import RecordSelection, show
from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import check_batches
from moldau.records.murmur2 import partition_of
from moldau.records.record import Record
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def world(moldau_session_broker, moldau_topic):
    return World(moldau_session_broker, moldau_topic)


class World:
    """The session's broker, with a topic of one partition."""

    def __init__(self, broker, topic):
        self.broker = broker
        self.topic = topic
        self.path = f"/api/v1/topics/{topic}/records"

    def store(self, *records, **rest):
        return ask(self.broker.http_address, "POST", self.path, {"records": records, **rest})

    def read(self, query=""):
        return ask(self.broker.http_address, "GET", self.path + query)

    def values(self, query=""):
        return [record["value"] for record in self.read(query).body["records"]]


def test_what_is_stored_is_read_back_and_kafka_clients_see_it_too(world):
    stored = world.store(
        {"key": "k", "value": "grüß", "headers": [["h", "v"], ["h", None]], "timestamp": 1234},
        {"value": None},
        {"key": "", "value": ""},
    )
    assert stored.status == 200
    assert stored.body == {
        "records": [{"partition": 0, "offset": number, "error": None} for number in range(3)]
    }
    shown = world.read()
    assert shown.status == 200
    first, second, third = shown.body["records"]
    assert first == {
        "offset": 0,
        "timestamp": 1234,
        "key": "k",
        "value": "grüß",
        "headers": [["h", "v"], ["h", None]],
    }
    assert (second["key"], second["value"]) == (None, None)
    assert (third["key"], third["value"]) == ("", "")
    assert second["timestamp"] > 1_600_000_000_000
    places = [shown.body[name] for name in ("next_offset", "start_offset", "end_offset")]
    assert places == [3, 0, 3]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": world.broker.bootstrap, "group.id": "unused"}
    )
    consumer.assign([confluent_kafka.TopicPartition(world.topic, 0, 0)])
    found = consumer.consume(3, 60)
    consumer.close()
    assert [message.value() for message in found] == ["grüß".encode(), None, b""]
    assert found[0].headers() == [("h", b"v"), ("h", None)]


def test_json_and_base64_come_back_as_they_went(world):
    value = {"item": [1, 2.5, None, "x"]}
    assert world.store({"value": value}, value_encoding="json").status == 200
    encoded = base64.b64encode(b"\xff\x00").decode()
    record = {"key": encoded, "value": encoded, "headers": [["h", encoded]]}
    rest = {"key_encoding": "base64", "value_encoding": "base64", "header_encoding": "base64"}
    assert world.store(record, **rest).status == 200
    as_json = world.read("?value_encoding=json").body["records"]
    assert as_json[0]["value"] == value
    # What does not fit stands beside, and cannot be taken for something else.
    assert (as_json[1]["value"], as_json[1]["value_base64"]) == (None, encoded)
    as_text = world.read().body["records"]
    assert json.loads(as_text[0]["value"]) == value
    assert (as_text[1]["key"], as_text[1]["key_base64"]) == (None, encoded)
    assert (as_text[1]["headers"], as_text[1]["binary_headers"]) == ([["h", encoded]], [0])
    as_base64 = world.read("?value_encoding=base64&key_encoding=base64").body["records"]
    assert json.loads(base64.b64decode(as_base64[0]["value"])) == value
    assert as_base64[1]["key"] == as_base64[1]["value"] == encoded


def test_a_partition_is_read_page_by_page(world):
    world.store(*({"value": str(number)} for number in range(5)))
    page = world.read("?limit=2&offset=1").body
    assert [record["offset"] for record in page["records"]] == [1, 2]
    rest = world.read(f"?offset={page['next_offset']}").body
    assert [record["offset"] for record in rest["records"]] == [3, 4]
    end = world.read(f"?offset={rest['next_offset']}").body
    assert (end["records"], end["next_offset"], end["end_offset"]) == ([], 5, 5)
    assert world.read("?offset=latest").body["next_offset"] == 5


def test_a_time_finds_its_place(world):
    world.store(*({"value": str(number), "timestamp": 1000 * number} for number in range(1, 5)))
    assert world.values("?time=2001") == ["3", "4"]
    assert world.values("?time=0") == ["1", "2", "3", "4"]
    assert world.values("?time=4001") == []


def test_a_filter_leaves_out_the_rest_and_goes_on_behind_it(world):
    world.store(*({"key": f"k{number % 3}", "value": f"value {number}"} for number in range(9)))
    assert world.values("?key=k1") == ["value 1", "value 4", "value 7"]
    assert world.values("?contains=lue%207") == ["value 7"]
    assert world.values("?key=k1&contains=8") == []
    page = world.read("?key=k1&limit=2").body
    assert page["next_offset"] == 5
    assert world.values(f"?key=k1&offset={page['next_offset']}") == ["value 7"]
    assert world.read("?contains=nothing").body["next_offset"] == 9


def test_a_filter_can_ask_for_headers(world):
    world.store(
        {"value": "a", "headers": [["kind", "x"], ["kind", "y"]]},
        {"value": "b", "headers": [["kind", "x"], ["level", "1:2"]]},
        {"value": "c", "headers": [["kind", None]]},
        {"value": "d"},
    )
    assert world.values("?header=kind") == ["a", "b", "c"]
    assert world.values("?header=kind:x") == ["a", "b"]
    assert world.values("?header=kind:x&header=level:1:2") == ["b"]
    assert world.values("?header=kind:") == []
    assert world.values("?header=kind:y&contains=b") == []


def test_a_filter_and_a_header_can_be_any_bytes(world):
    binary = base64.b64encode(b"\xff\x00 k").decode()
    world.store(
        {"key": binary, "value": binary, "headers": [["h", binary]]},
        {"key": base64.b64encode(b"other").decode(), "value": binary},
        key_encoding="base64",
        value_encoding="base64",
        header_encoding="base64",
    )
    offsets = [one["offset"] for one in world.read("?key=%ff%00+k").body["records"]]
    assert offsets == [0]
    assert len(world.read("?contains=%FF").body["records"]) == 2
    assert len(world.read("?header=h:%ff%00%20k").body["records"]) == 1
    text = base64.b64encode(b"text").decode()
    world.store({"headers": [["h", text]]}, header_encoding="base64")
    # Asked for, it is always base64, and cannot be taken for text that looks like it.
    shown = world.read("?header_encoding=base64&header=h").body["records"]
    assert [one["headers"] for one in shown] == [[["h", binary]], [["h", text]]]
    assert all("binary_headers" not in one for one in shown)


@pytest.mark.parametrize("name", [b"json", b"\\u006ason"], ids=["plain", "in escapes"])
def test_json_is_stored_as_it_was_sent_also_if_all_of_it_are_strings(world, name):
    raw = b'{"records": [{"key": "a", "value": "b\\u0020"}], "value_encoding": "%b"}' % name
    assert ask(world.broker.http_address, "POST", world.path, raw=raw).status == 200
    (shown,) = world.read("?value_encoding=base64").body["records"]
    assert (shown["key"], base64.b64decode(shown["value"])) == ("a", b'"b\\u0020"')


def test_a_refusal_names_the_record_that_it_is_about(world):
    for rest in (
        {"value_encoding": "base64"},
        {"key_encoding": "json", "value_encoding": "base64"},
    ):
        reply = world.store({"value": "eA=="}, {"value": "x"}, **rest)
        assert (reply.status, reply.body["error"]) == (400, "INVALID_REQUEST")
        assert "Record 1 " in reply.body["detail"]


def test_json_that_is_no_text_is_not_stored(world):
    raw = b'{"value_encoding": "json", "records": [{"value": "\xff"}]}'
    reply = ask(world.broker.http_address, "POST", world.path, raw=raw)
    assert (reply.status, reply.body["error"]) == (400, "INVALID_REQUEST")
    assert world.read().body["end_offset"] == 0


@pytest.mark.parametrize(
    "value",
    [b"123456789012345678901234567890", b"1e999", b"[" * 900 + b"]" * 900, b'"\\u0000"', b"-0"],
    ids=lambda value: str(value[:20]),
)
def test_json_of_any_kind_comes_back_or_stands_beside(world, value):
    raw = b'{"value_encoding": "json", "records": [{"value": %b}]}' % value
    assert ask(world.broker.http_address, "POST", world.path, raw=raw).status == 200
    (shown,) = world.read("?value_encoding=json").body["records"]
    if shown["value"] is None:
        assert base64.b64decode(shown["value_base64"]) == value
    else:
        assert shown["value"] == json.loads(value)
    (plain,) = world.read("?value_encoding=base64").body["records"]
    assert base64.b64decode(plain["value"]) == value


def test_a_page_has_a_bound_in_bytes_too(world):
    """A megabyte of a log may hold any amount of what compresses well."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": world.broker.bootstrap,
            "compression.type": "zstd",
            "linger.ms": 200,
            "message.max.bytes": 2_000_000,
        }
    )
    for _ in range(12):
        producer.produce(world.topic, b"x" * 900_000)
    assert producer.flush(wait_seconds_max()) == 0
    offset, pages = 0, []
    while offset < 12:
        page = world.read(f"?offset={offset}").body
        pages.append(len(page["records"]))
        assert [one["offset"] for one in page["records"]] == list(
            range(offset, page["next_offset"])
        )
        offset = page["next_offset"]
    assert max(pages) == 4
    assert sum(pages) == 12


def test_who_waits_is_answered_by_the_next_record(world):
    # The wait is far longer than the test may take; a record that is there ends it.
    world.store({"value": "first"})
    assert world.values("?offset=0&wait_ms=10000") == ["first"]
    assert world.values("?offset=latest&wait_ms=1") == []


def test_aborted_records_are_not_shown_and_open_ones_not_yet(world):
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": world.broker.bootstrap, "transactional.id": f"http-{world.topic}"}
    )
    producer.init_transactions(wait_seconds_max())
    for value, ends in (("a", producer.abort_transaction), ("b", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(world.topic, value.encode(), partition=0)
        producer.flush(wait_seconds_max())
        assert "a" not in world.values()
        ends(wait_seconds_max())
    page = world.read("?wait_ms=10000").body
    while page["next_offset"] < 4:
        page = world.read("?wait_ms=10000").body
    assert [record["value"] for record in page["records"]] == ["b"]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_stored_compressed(world, compression):
    values = [str(number) * 10_000 for number in range(20)]
    records = [{"value": value} for value in values]
    assert world.store(*records, compression=compression).status == 200
    assert world.values() == values
    partition = ask(world.broker.http_address, "GET", f"/api/v1/topics/{world.topic}").body
    (size,) = [one["log_bytes"] for one in partition["partitions"]]
    assert (size < 100_000) == (compression != "none")


def test_a_record_that_compression_makes_small_enough_is_stored(world):
    large = {"value": "x" * 2**21}
    assert world.store(large).body["error"] == "MESSAGE_TOO_LARGE"
    assert world.store(large, compression="zstd").status == 200
    assert world.values() == [large["value"]]


def test_compressed_batches_are_shown(world):
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": world.broker.bootstrap, "compression.type": codec}
        )
        for _ in range(20):
            producer.produce(world.topic, codec.encode() * 20)
        assert producer.flush(wait_seconds_max()) == 0
    values = world.values()
    assert [values[20 * number] for number in range(4)] == [
        codec * 20 for codec in ("gzip", "snappy", "lz4", "zstd")
    ]
    assert len(values) == 80


def test_keys_go_where_kafkas_producers_send_them(moldau_session_broker):
    address = moldau_session_broker.http_address
    body = {"name": "http-keys", "partitions": 5}
    assert ask(address, "POST", "/api/v1/topics", body).status == 201
    keys = [f"key-{number}" for number in range(20)]
    records = [*({"key": key} for key in keys), {"key": "x", "partition": 3}, {}, {}]
    stored = ask(address, "POST", "/api/v1/topics/http-keys/records", {"records": records}).body
    places = [record["partition"] for record in stored["records"]]
    assert places[:20] == [partition_of(key.encode(), 5) for key in keys]
    assert places[20] == 3
    assert places[21] == places[22]
    # Each request without a key goes to the next.
    others = {
        ask(address, "POST", "/api/v1/topics/http-keys/records", {"records": [{}]}).body["records"][
            0
        ]["partition"]
        for _ in range(5)
    }
    assert others == set(range(5))


def test_a_topic_is_created_checked_and_deleted(moldau_session_broker):
    address = moldau_session_broker.http_address
    wanted = {"name": "http-made", "partitions": 2, "configs": {"retention.ms": "5000"}}
    reply = ask(address, "POST", "/api/v1/topics", {**wanted, "validate_only": True})
    assert (reply.status, reply.body["partition_count"]) == (200, 2)
    assert ask(address, "GET", "/api/v1/topics/http-made").status == 404
    reply = ask(address, "POST", "/api/v1/topics", wanted)
    assert (reply.status, reply.headers["location"]) == (201, "/api/v1/topics/http-made")
    settings = {setting["name"]: setting["value"] for setting in reply.body["configs"]}
    assert settings["retention.ms"] == "5000"
    again = ask(address, "POST", "/api/v1/topics", wanted)
    assert (again.status, again.body["error"]) == (409, "TOPIC_ALREADY_EXISTS")
    gone = ask(address, "DELETE", "/api/v1/topics/http-made")
    assert (gone.status, gone.body) == (200, {"name": "http-made", "id": reply.body["id"]})
    assert ask(address, "DELETE", "/api/v1/topics/http-made").status == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "a/b"},
        {"name": "x" * 250},
        {"name": "ok", "partitions": 0},
        {"name": "ok", "partitions": 2**40},
        {"name": "ok", "replication_factor": 5},
        {"name": "ok", "configs": {"no.such": "1"}},
        {"name": "ok", "configs": {"retention.ms": "soon"}},
        {"name": "ok", "partitons": 3},
    ],
    ids=str,
)
def test_a_topic_that_cannot_be_is_refused(moldau_session_broker, body):
    reply = ask(moldau_session_broker.http_address, "POST", "/api/v1/topics", body)
    assert reply.status == 400, reply.body
    assert reply.body["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {"records": []},
        {"records": [{}] * (produce.RECORDS_MAX + 1)},
        {"records": [{"value": 5}]},
        {"records": [{"value": {"a": 1}}]},
        {"records": [{"vaule": "typo"}]},
        {"records": [{"value": "x", "timestamp": -1}]},
        {"records": [{"value": "x", "timestamp": 2**63}]},
        {"records": [{"value": "x", "headers": {"a": "b"}}]},
        {"records": [{"value": "not base64!"}], "value_encoding": "base64"},
        {"records": [{"value": "grüß"}], "value_encoding": "base64"},
        {"records": [{"value": "x"}], "acks": "none"},
        {"records": [{"value": "x"}], "compression": "brotli"},
        {"records": [{"value": "x"}], "timeout_ms": 0},
        {"records": [{"value": "good"}, {"value": 1}]},
    ],
    ids=lambda body: str(body)[:60],
)
def test_records_that_do_not_fit_are_refused_and_none_is_stored(world, body):
    reply = ask(world.broker.http_address, "POST", world.path, body)
    assert (reply.status, reply.body["error"]) == (400, "INVALID_REQUEST")
    assert world.read().body["end_offset"] == 0


def test_no_text_hidden_in_escapes_is_stored(world):
    raw = b'{"records": [{"value": "\\ud800"}]}'
    reply = ask(world.broker.http_address, "POST", world.path, raw=raw)
    assert (reply.status, reply.body["error"]) == (400, "INVALID_REQUEST")


def test_a_body_has_a_bound_and_so_has_a_record(world):
    reply = world.store({"value": "x" * produce.BODY_BYTES_MAX})
    assert (reply.status, reply.body["error"]) == (413, "MESSAGE_TOO_LARGE")
    reply = world.store({"value": "x" * 1_100_000}, {"value": "y"})
    assert (reply.status, reply.body["error"]) == (400, "MESSAGE_TOO_LARGE")
    assert [one["error"] for one in reply.body["records"]] == ["MESSAGE_TOO_LARGE"] * 2
    assert "2 of 2" in reply.body["detail"]
    # Many that fit one by one fit together, in several batches.
    assert world.store(*({"value": "z" * 600_000} for _ in range(5))).status == 200
    assert world.read("?offset=4").body["end_offset"] == 5


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/api/v1/topics/none/records", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("POST", "/api/v1/topics/none/records", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("GET", "{path}?partition=1", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("GET", "{path}?offset=1", 400, "OFFSET_OUT_OF_RANGE"),
        ("GET", "{path}?offset=-1", 400, "INVALID_REQUEST"),
        ("GET", "{path}?offset=first", 400, "INVALID_REQUEST"),
        ("GET", "{path}?offset=0&time=0", 400, "INVALID_REQUEST"),
        ("GET", "{path}?time=yesterday", 400, "INVALID_REQUEST"),
        ("GET", "{path}?value_encoding=xml", 400, "INVALID_REQUEST"),
        ("GET", "{path}?value_encoding=", 400, "INVALID_REQUEST"),
        ("GET", "{path}?header_encoding=json", 400, "INVALID_REQUEST"),
        ("GET", "{path}?key=a&key=b", 400, "INVALID_REQUEST"),
        ("GET", "{path}?" + "header=a&" * 11, 400, "INVALID_REQUEST"),
        ("GET", "{path}?wait_ms=10001", 400, "INVALID_REQUEST"),
        ("GET", "{path}?limit=0", 400, "INVALID_REQUEST"),
        ("PUT", "{path}", 405, "INVALID_REQUEST"),
    ],
)
def test_requests_that_do_not_fit_are_refused(world, method, path, status, error):
    body: object = {"records": [{}]} if method == "POST" else None
    reply = ask(world.broker.http_address, method, path.format(path=world.path), body)
    assert (reply.status, reply.body["error"]) == (status, error)
    if status == 405:
        assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


def test_several_partitions_need_a_choice(moldau_session_broker):
    address = moldau_session_broker.http_address
    ask(address, "POST", "/api/v1/topics", {"name": "http-several", "partitions": 2})
    reply = ask(address, "GET", "/api/v1/topics/http-several/records")
    assert (reply.status, reply.body["error"]) == (400, "INVALID_REQUEST")
    assert "partition" in reply.body["detail"]


def store_in_the_end(address, path, body):
    """A machine under load may elect another leader just then: the answer says to try again."""

    def ask_once():
        found = ask(address, "POST", path, body)
        return found if found.status != 503 else None

    reply = wait_until(ask_once, "the records are taken")
    assert reply.status == 200, reply.body
    return reply


def test_any_broker_takes_records_for_all_partitions(moldau_cluster):
    addresses = [broker.http_address for broker in moldau_cluster.brokers]
    body = {"name": "wide", "partitions": 6, "replication_factor": 3}
    assert ask(addresses[0], "POST", "/api/v1/topics", body).status == 201
    for partition in range(6):
        moldau_cluster.leader("wide", partition)
    records = [{"value": f"v{number}", "partition": number} for number in range(6)]
    path = "/api/v1/topics/wide/records"
    for address in addresses:
        for acks in ("all", "leader"):
            reply = store_in_the_end(address, path, {"records": records, "acks": acks})
            assert [record["partition"] for record in reply.body["records"]] == list(range(6))
            assert all(record["offset"] >= 0 for record in reply.body["records"])
    for address in addresses:
        for partition in range(6):
            query = f"{path}?partition={partition}&wait_ms=10000"
            shown = ask(address, "GET", query).body
            values = [record["value"] for record in shown["records"]]
            assert set(values) == {f"v{partition}"}


def record(size: int) -> Record:
    return Record(Offset(0), TimestampMs(0), b"k", b"x" * size, [("ä" * 50, b"v" * 50)])


@pytest.mark.parametrize("size", [0, 10, 1000, 5000])
def test_batches_keep_within_the_bound(size):
    records = [record(size) for _ in range(30)]
    headers = check_batches(memoryview(build_batches(records, 6000)), bytes_max=6000)
    assert sum(header.record_count for header in headers) == 30
    assert len(headers) < 30 or size == 5000


def test_a_header_of_any_bytes_can_be_shown():
    strange = Record(Offset(1), TimestampMs(2), None, None, [("a\udcff", b"\xff"), ("b", b"ok")])
    shown = show(strange, RecordSelection())
    assert [(name, bytes(value)) for name, value in shown.headers] == [
        ("a?", b'"/w=="'),
        ("b", b'"ok"'),
    ]
