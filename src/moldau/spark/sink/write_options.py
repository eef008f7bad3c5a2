"""Owns what a write was asked for: the options of Spark's Kafka connector, and what is new here."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.client.kafka.security import Security
from moldau.records.compression import Codec
from moldau.spark.option_table import Side
from moldau.spark.options import Options, tell_once

TOPIC: Final = "topic"
EXACTLY_ONCE: Final = "exactlyOnce"
FAIL_ON_LOSS: Final = "failOnDataLoss"
DECISIONS: Final = "decisionsTopic"
APP_ID: Final = "txnAppId"
VERSION: Final = "txnVersion"
TIMESTAMPS: Final = "writeTimestamp"
ACKS: Final = "kafka.acks"
COMPRESSION: Final = "kafka.compression.type"
BATCH_BYTES: Final = "kafka.batch.size"
REQUEST_BYTES: Final = "kafka.max.request.size"
BUFFER_BYTES: Final = "kafka.buffer.memory"
TRANSACTION_TIMEOUT: Final = "kafka.transaction.timeout.ms"

DECISIONS_TOPIC_DEFAULT: Final = "__moldau_spark_decisions"
BATCH_BYTES_DEFAULT: Final = 512 * 1024
REQUEST_BYTES_DEFAULT: Final = 1024 * 1024
BUFFER_BYTES_DEFAULT: Final = 32 * 1024 * 1024
_BYTES_LEAST: Final = 1024
_APP_ID_CHARACTERS_MAX: Final = 200
_VERSION_MAX: Final = 2**63 - 1
_ACKS: Final = {"all": -1, "-1": -1, "1": 1, "0": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Of a table that is written once, however often it is asked for."""

    app_id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Checked; travels to tasks."""

    bootstrap: str
    client_id: str
    timeout_seconds: float
    security: Security
    topic: str | None
    """For all rows; None takes it from the column of that name."""
    exactly_once: bool
    fail_on_data_loss: bool
    decisions_topic: str
    acks: int
    codec: Codec
    batch_bytes_max: int
    request_bytes_max: int
    buffer_bytes_max: int
    takes_timestamps: bool
    """From the column of that name; else records have the time of writing."""
    transaction_timeout_ms: int | None
    """None takes the longest that brokers allow."""
    version: Version | None
    """None for streams, and for tables that are written as often as they are asked for."""


def parse_write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Raises InvalidArgumentError, which names the option to change."""
    parsed = Options(options)
    parsed.check_names(Side.WRITE)
    topic = parsed.text(TOPIC)
    if topic == "":
        raise InvalidArgumentError(f"option {TOPIC} is empty")
    version = _version(parsed, streaming=streaming)
    exactly_once = parsed.flag(EXACTLY_ONCE, default=streaming or version is not None)
    if version is not None and not exactly_once:
        raise InvalidArgumentError(
            f"options {APP_ID} and {VERSION} write exactly once, but {EXACTLY_ONCE} is false",
            hint=f"remove {EXACTLY_ONCE}",
        )
    acks = _acks(parsed, exactly_once=exactly_once)
    request_bytes = _bytes(parsed, REQUEST_BYTES, REQUEST_BYTES_DEFAULT)
    return WriteOptions(
        bootstrap=parsed.bootstrap(),
        client_id=parsed.client_id(),
        timeout_seconds=parsed.timeout_seconds(),
        security=parsed.security(),
        topic=topic,
        exactly_once=exactly_once,
        fail_on_data_loss=parsed.flag(FAIL_ON_LOSS, default=True),
        decisions_topic=parsed.text(DECISIONS) or DECISIONS_TOPIC_DEFAULT,
        acks=acks,
        codec=_codec(parsed),
        batch_bytes_max=min(_bytes(parsed, BATCH_BYTES, BATCH_BYTES_DEFAULT), request_bytes),
        request_bytes_max=request_bytes,
        buffer_bytes_max=_bytes(parsed, BUFFER_BYTES, BUFFER_BYTES_DEFAULT),
        takes_timestamps=parsed.flag(TIMESTAMPS, default=False),
        transaction_timeout_ms=parsed.whole_number(TRANSACTION_TIMEOUT),
        version=version,
    )


def _version(parsed: Options, *, streaming: bool) -> Version | None:
    app_id = parsed.text(APP_ID)
    number = parsed.whole_number(VERSION, least=0)
    if app_id is None and number is None:
        return None
    if streaming:
        raise InvalidArgumentError(
            f"options {APP_ID} and {VERSION} are for tables: a stream has its checkpoint",
            hint="remove them: streams are written exactly once as they are",
        )
    if not app_id or number is None:
        missing = APP_ID if not app_id else VERSION
        raise InvalidArgumentError(
            f"option {missing} is missing: {APP_ID} and {VERSION} go together",
            hint=f"inside of foreachBatch, {VERSION} is the number of the batch",
        )
    if len(app_id) > _APP_ID_CHARACTERS_MAX:
        raise InvalidArgumentError(
            f"option {APP_ID} has {len(app_id)} characters; {_APP_ID_CHARACTERS_MAX} are allowed"
        )
    if number > _VERSION_MAX:
        raise InvalidArgumentError(f"option {VERSION} is at most {_VERSION_MAX}, not {number}")
    return Version(app_id=app_id, number=number)


def _acks(parsed: Options, *, exactly_once: bool) -> int:
    text = (parsed.text(ACKS) or "all").lower()
    if text not in _ACKS:
        raise InvalidArgumentError(f"option {ACKS} is all, 1 or 0, not {text!r}")
    if exactly_once and _ACKS[text] != -1:
        tell_once(f"option {ACKS} is {text}, and writing exactly once takes all")
        return -1
    return _ACKS[text]


def _codec(parsed: Options) -> Codec:
    name = (parsed.text(COMPRESSION) or "none").lower()
    try:
        return Codec.from_config_name(name)
    except KeyError:
        raise InvalidArgumentError(
            f"option {COMPRESSION} is none, gzip, snappy, lz4 or zstd, not {name!r}"
        ) from None


def _bytes(parsed: Options, name: str, default: int) -> int:
    found = parsed.whole_number(name, least=0)
    if found is not None and found > sys.maxsize:
        raise InvalidArgumentError(f"option {name} is too large")
    # Kafka's producer takes 0 for batches of one record each.
    return default if found is None else max(found, _BYTES_LEAST)
