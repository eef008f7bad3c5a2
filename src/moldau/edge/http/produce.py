"""Owns POST /api/v1/topics/{topic}/records: records as JSON become batches for the leaders."""

import base64
import binascii
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request
from starlette.responses import Response

from moldau.edge.http.answers import (
    PROBLEM_TYPE,
    answer,
    check_query,
    problem,
    read_body,
    retry_headers,
    status_of,
)
from moldau.metadata.config_types import INT_MAX, LONG_MAX
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, TimestampMs
from moldau.model.topology import ErrorReply
from moldau.records.record import Headers, Record
from moldau.service.appending import Appended
from moldau.service.broker import Broker
from moldau.service.finding import find_topic
from moldau.service.produce import ACKS_ALL, ACKS_LEADER
from moldau.service.sending import Sender, offsets_of

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
RECORDS_MAX: Final = 2000
TIMEOUT_MS_MAX: Final = 30_000

_NOTHING: Final = Raw(b"null")


def _nothing() -> Raw:
    # By a call: a default value would have to be told in the schema, and this kind cannot be.
    return _NOTHING


Encoding = Literal["text", "json", "base64"]


class RecordSent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: Raw = msgspec.field(default_factory=_nothing)
    value: Raw = msgspec.field(default_factory=_nothing)
    headers: tuple[tuple[str, str | None], ...] = ()
    partition: Annotated[int, Meta(ge=0, le=INT_MAX)] | None = None
    timestamp: Annotated[int, Meta(ge=0, le=LONG_MAX)] | None = None


class RecordsSent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    records: Annotated[list[RecordSent], Meta(min_length=1, max_length=RECORDS_MAX)]
    key_encoding: Encoding = "text"
    value_encoding: Encoding = "text"
    header_encoding: Literal["text", "base64"] = "text"
    acks: Literal["all", "leader"] = "all"
    timeout_ms: Annotated[int, Meta(ge=1, le=TIMEOUT_MS_MAX)] = 10_000


class RecordStored(Struct, frozen=True, kw_only=True):
    partition: int
    offset: int | None
    """null: it was not stored, or it is not known whether it was."""
    error: str | None = None


class RecordsStored(Struct, frozen=True, kw_only=True):
    records: list[RecordStored]


class StoreProblem(ErrorReply, frozen=True, kw_only=True):
    """Some were not stored: which, is told one by one; not if all was refused as a whole."""

    records: list[RecordStored] = []


_decoder: Final = msgspec.json.Decoder(RecordsSent)
_decode_text: Final = msgspec.json.Decoder(str | None).decode


class RecordDoor:
    """Takes records for any partition, whoever leads it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sender = Sender(broker)

    async def store(self, request: Request) -> Response:
        check_query(request)
        sent = await read_body(request, _decoder, bytes_max=BODY_BYTES_MAX)
        topic = find_topic(self._broker, request.path_params["topic"])
        records = _read_records(sent, self._broker.clock.wall_ms())
        asked = zip(sent.records, records, strict=True)
        places = self._sender.places(topic, ((one.partition, record.key) for one, record in asked))
        acks = ACKS_ALL if sent.acks == "all" else ACKS_LEADER
        answers = await self._sender.store(
            topic, records, places, acks=acks, timeout_seconds=sent.timeout_ms / 1000
        )
        return _answer(places, answers)


def _answer(places: list[int], answers: dict[int, Appended]) -> Response:
    stored = []
    failed: Appended | None = None
    for partition, offset in zip(places, offsets_of(places, answers), strict=True):
        found = answers[partition]
        if found.error is ErrorCode.NONE:
            stored.append(RecordStored(partition=partition, offset=offset))
        else:
            failed = failed or found
            stored.append(RecordStored(partition=partition, offset=None, error=found.error.name))
    if failed is None:
        return answer(RecordsStored(records=stored))
    lost = sum(record.offset is None for record in stored)
    status = status_of(failed.error)
    details = problem(status, failed.error, f"{lost} of {len(stored)} not stored: {failed.message}")
    body = StoreProblem(**msgspec.structs.asdict(details), records=stored)
    return answer(body, status, retry_headers(status), media_type=PROBLEM_TYPE)


def _read_records(sent: RecordsSent, now: TimestampMs) -> list[Record]:
    """Raises RefusedError, and says which record it is about."""
    records = []
    for number, one in enumerate(sent.records):
        try:
            headers: Headers = [
                (name, _read_header(text, sent.header_encoding)) for name, text in one.headers
            ]
            records.append(
                Record(
                    Offset(0),
                    now if one.timestamp is None else TimestampMs(one.timestamp),
                    _read_field(one.key, sent.key_encoding),
                    _read_field(one.value, sent.value_encoding),
                    headers,
                )
            )
        except (msgspec.DecodeError, binascii.Error, UnicodeError) as error:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"Record {number} is not as its encoding says: {error}"
            ) from None
    return records


def _read_field(raw: Raw, encoding: Encoding) -> bytes | None:
    data = bytes(raw)
    if data == b"null":
        return None
    if encoding == "json":
        if not data.isascii():
            # The reader of JSON steps over strings without looking into them.
            data.decode()
        return data
    text = _decode_text(data)
    return _read_header(text, encoding)


def _read_header(text: str | None, encoding: Literal["text", "base64"]) -> bytes | None:
    if text is None:
        return None
    if encoding == "text":
        return text.encode()
    return base64.b64decode(text.encode("ascii"), validate=True)
