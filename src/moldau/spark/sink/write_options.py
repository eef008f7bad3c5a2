"""The options of a write: those of Spark's Kafka connector, and ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.client.errors import InvalidArgumentError
from moldau.records.compression import Codec
from moldau.spark.option_table import Side
from moldau.spark.options import ConnectionOptions, Options

DECISIONS: Final = "decisionsTopic"
REQUEST_BYTES: Final = "kafka.max.request.size"
TRANSACTION_TIMEOUT: Final = "kafka.transaction.timeout.ms"

_BYTES_LEAST: Final = 1024
_APP_ID_CHARACTERS_MAX: Final = 200
_VERSION_MAX: Final = 2**63 - 1


class Version(NamedTuple):
    """A batch write with a version is written once, however often it is repeated."""

    app_id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(ConnectionOptions):
    """Validated options; sent to tasks."""

    topic: str | None
    """For all rows; None: use the column `topic`."""
    exactly_once: bool
    fail_on_data_loss: bool
    decisions_topic: str
    codec: Codec
    batch_bytes_max: int
    request_bytes_max: int
    buffer_bytes_max: int
    takes_timestamps: bool
    """From the column `timestamp`; otherwise records have the time of writing."""
    transaction_timeout_ms: int | None
    """None: the longest that brokers allow."""
    version: Version | None
    """None for streams, and for batch writes that are written again if repeated."""


def parse_write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Raises InvalidArgumentError, which names the option to change."""
    parsed = Options(options)
    parsed.check_names(Side.WRITE)
    topic = parsed.text("topic")
    if topic == "":
        raise InvalidArgumentError("option topic is empty")
    version = _version(parsed, streaming=streaming)
    exactly_once = parsed.flag("exactlyOnce", default=streaming or version is not None)
    if version is not None and not exactly_once:
        raise InvalidArgumentError(
            "options txnAppId and txnVersion write exactly once, but exactlyOnce is false",
            hint="remove exactlyOnce",
        )
    name = (parsed.text("kafka.compression.type") or "none").lower()
    try:
        codec = Codec.from_config_name(name)
    except KeyError:
        names = ", ".join(Codec.__members__).lower()
        raise InvalidArgumentError(
            f"option kafka.compression.type must be one of {names}, not {name!r}"
        ) from None
    request_bytes = _bytes(parsed, REQUEST_BYTES, 1024 * 1024)
    return WriteOptions(
        **parsed.connection(),
        topic=topic,
        exactly_once=exactly_once,
        fail_on_data_loss=parsed.flag("failOnDataLoss", default=True),
        decisions_topic=parsed.text(DECISIONS) or "__moldau_spark_decisions",
        codec=codec,
        batch_bytes_max=min(_bytes(parsed, "kafka.batch.size", 512 * 1024), request_bytes),
        request_bytes_max=request_bytes,
        buffer_bytes_max=_bytes(parsed, "kafka.buffer.memory", 32 * 1024 * 1024),
        takes_timestamps=parsed.flag("writeTimestamp", default=False),
        transaction_timeout_ms=parsed.whole_number(TRANSACTION_TIMEOUT),
        version=version,
    )


def _version(parsed: Options, *, streaming: bool) -> Version | None:
    app_id = parsed.text("txnAppId")
    number = parsed.whole_number("txnVersion", least=0)
    if app_id is None and number is None:
        return None
    if streaming:
        raise InvalidArgumentError(
            "options txnAppId and txnVersion are for batch writes: a stream has its checkpoint",
            hint="remove them: streams are written exactly once by default",
        )
    if not app_id or number is None:
        missing = "txnVersion" if app_id else "txnAppId"
        raise InvalidArgumentError(
            f"option {missing} is missing: txnAppId and txnVersion must be set together",
            hint="inside foreachBatch, use the batch id as txnVersion",
        )
    if len(app_id) > _APP_ID_CHARACTERS_MAX:
        raise InvalidArgumentError(
            f"option txnAppId has {len(app_id)} characters; the limit is {_APP_ID_CHARACTERS_MAX}"
        )
    if number > _VERSION_MAX:
        raise InvalidArgumentError(
            f"option txnVersion must be at most {_VERSION_MAX}, not {number}"
        )
    return Version(app_id, number)


def _bytes(parsed: Options, name: str, default: int) -> int:
    found = parsed.whole_number(name, least=0)
    # Kafka's producer accepts 0 for batches of one record each.
    return default if found is None else max(found, _BYTES_LEAST)
