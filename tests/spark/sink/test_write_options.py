"""Options of writes: what they are without being set, and what is refused."""

from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.records.compression import Codec
from moldau.spark.sink.write_options import WriteOptions, parse_write_options


def parsed(*, streaming: bool = True, **options: Any) -> WriteOptions:
    asked = {"kafka.bootstrap.servers": "localhost:1", **options}
    return parse_write_options(asked, streaming=streaming)


def test_streams_are_written_exactly_once_and_tables_as_they_come() -> None:
    assert parsed().exactly_once
    assert not parsed(streaming=False).exactly_once
    assert parsed(streaming=False, exactlyOnce="true").exactly_once


def test_what_sparks_kafka_connector_takes_is_taken() -> None:
    kafka: Any = {
        "kafka.acks": "1",
        "kafka.compression.type": "zstd",
        "kafka.linger.ms": "5",
        "kafka.batch.size": "99999999",
        "kafka.max.request.size": "2000000",
    }
    found = parsed(exactlyOnce="false", topic="t", checkpointLocation="/somewhere", **kafka)
    assert (found.codec, found.topic) == (Codec.ZSTD, "t")
    # A batch is never larger than a request may be.
    assert found.batch_bytes_max == 2_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": " "}, "option topic is empty"),
        (
            {"kafka.compression.type": "rar"},
            "option kafka.compression.type must be one of none, gzip",
        ),
        ({"kafka.batch.size": "-1"}, "option kafka.batch.size must be at least 0"),
        ({"kafka.transaction.timeout.ms": "0"}, "kafka.transaction.timeout.ms must be at least"),
        ({"topics": "a"}, "did you mean topic"),
        ({"kafka.security.protocol": "SASL_SSL"}, "option kafka.sasl.mechanism is GSSAPI"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parsed(**options)


def test_a_version_needs_its_application_and_writes_exactly_once() -> None:
    found = parsed(streaming=False, txnAppId="nightly", txnVersion="0")
    assert found.version is not None
    assert (found.version.app_id, found.version.number, found.exactly_once) == ("nightly", 0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnAppId": "a"}, "option txnVersion is missing"),
        ({"txnVersion": "1"}, "option txnAppId is missing"),
        ({"txnAppId": " ", "txnVersion": "1"}, "option txnAppId is missing"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "option txnVersion must be at least 0"),
        ({"txnAppId": "a", "txnVersion": str(2**63)}, "option txnVersion must be at most"),
        ({"txnAppId": "a" * 201, "txnVersion": "1"}, "has 201 characters"),
        ({"txnAppId": "a", "txnVersion": "1", "exactlyOnce": "false"}, "exactlyOnce is false"),
    ],
)
def test_half_a_version_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parsed(streaming=False, **options)


def test_a_stream_has_no_version() -> None:
    with pytest.raises(InvalidArgumentError, match="a stream has its checkpoint"):
        parsed(txnAppId="a", txnVersion="1")
