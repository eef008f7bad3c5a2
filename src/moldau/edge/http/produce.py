"""POST /api/v1/topics/{topic}/records: turns JSON records into batches for the leaders."""

import base64
import binascii
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request
from starlette.responses import Response

from moldau import tracing
from moldau.api.record_producer import offsets_of
from moldau.api.types import ACKS_ALL, ACKS_LEADER, INT_MAX, LONG_MAX, AppendResult
from moldau.edge.http.record_json import Encoding, HeaderEncoding
from moldau.edge.http.responses import (
    PROBLEM_TYPE,
    check_query,
    problem,
    read_body,
    respond,
    retry_headers,
    status_of,
)
from moldau.edge.http.visits import session_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import TimestampMs
from moldau.model.topology import ErrorReply
from moldau.records.compression import Codec
from moldau.records.record import Headers, Record

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
RECORDS_MAX: Final = 2000
TIMEOUT_MS_MAX: Final = 30_000

_NOTHING: Final = Raw(b"null")
# What a NamedTuple's own constructor does, without its call.
_new_record: Final = tuple.__new__


def _nothing() -> Raw:
    # A factory: a default value would appear in the schema, which cannot express it.
    return _NOTHING


class _Sent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    headers: tuple[tuple[str, str | None], ...] = ()
    partition: Annotated[int, Meta(ge=0, le=INT_MAX)] | None = None
    timestamp: Annotated[int, Meta(ge=0, le=LONG_MAX)] | None = None


class RecordSent(_Sent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: Raw = msgspec.field(default_factory=_nothing)
    value: Raw = msgspec.field(default_factory=_nothing)


class _TextSent(_Sent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record whose key and value are strings: all are decoded in one step."""

    key: str | None = None
    value: str | None = None


class _Terms(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for all records of a body."""

    key_encoding: Encoding = "text"
    value_encoding: Encoding = "text"
    header_encoding: HeaderEncoding = "text"
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    acks: Literal["all", "leader"] = "all"
    timeout_ms: Annotated[int, Meta(ge=1, le=TIMEOUT_MS_MAX)] = 10_000


class RecordsSent(_Terms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    records: Annotated[list[RecordSent], Meta(min_length=1, max_length=RECORDS_MAX)]


class _TextsSent(_Terms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    records: Annotated[list[_TextSent], Meta(min_length=1, max_length=RECORDS_MAX)]


class RecordStored(Struct, frozen=True, kw_only=True):
    partition: int
    offset: int | None
    """null: not stored, or unknown whether it was."""
    error: str | None = None


class RecordsStored(Struct, frozen=True, kw_only=True):
    records: list[RecordStored]


class StoreProblem(ErrorReply, frozen=True, kw_only=True):
    """`records` has the result of each record; empty if the request was rejected as a whole."""

    records: list[RecordStored] = []


_decode_sent: Final = msgspec.json.Decoder(RecordsSent).decode
_decode_texts: Final = msgspec.json.Decoder(_TextsSent).decode
_decode_text: Final = msgspec.json.Decoder(str | None).decode


def _decode(body: bytes | bytearray) -> RecordsSent | _TextsSent:
    """Raises msgspec.DecodeError, always with the message of the general decoder."""
    if b'"json"' not in body:
        try:
            sent = _decode_texts(body)
        except msgspec.ValidationError:
            return _decode_sent(body)
        if "json" not in (sent.key_encoding, sent.value_encoding):
            return sent
    return _decode_sent(body)


async def store(request: Request) -> Response:
    check_query(request)
    session, name = session_of(request), request.path_params["topic"]
    # Who may not write here takes no memory from those who may.
    session.appends.check(name)
    session.topics.get(name)
    sent = await read_body(request, _decode, bytes_max=BODY_BYTES_MAX)
    # Again: meanwhile it may have been deleted.
    topic = session.topics.get(name)
    records = _read_records(sent, session.clock.wall_ms())
    if tracing.active is not None:
        records = tracing.active.stamped(records)
    pairs = zip(sent.records, records, strict=True)
    partitions = session.appends.partitions_for(
        topic, ((one.partition, record.key) for one, record in pairs)
    )
    acks = ACKS_ALL if sent.acks == "all" else ACKS_LEADER
    results = await session.appends.store(
        topic,
        records,
        partitions,
        acks=acks,
        timeout_seconds=sent.timeout_ms / 1000,
        codec=Codec.from_config_name(sent.compression),
    )
    return _answer(partitions, results)


def _answer(partitions: list[int], results: dict[int, AppendResult]) -> Response:
    failed = next((found for found in results.values() if found.error is not ErrorCode.NONE), None)
    pairs = zip(partitions, offsets_of(partitions, results), strict=True)
    if failed is None:
        stored = [RecordStored(partition=partition, offset=offset) for partition, offset in pairs]
        return respond(RecordsStored(records=stored))
    stored = []
    for partition, offset in pairs:
        error = results[partition].error
        if error is ErrorCode.NONE:
            stored.append(RecordStored(partition=partition, offset=offset))
        else:
            stored.append(RecordStored(partition=partition, offset=None, error=error.name))
    lost = sum(record.offset is None for record in stored)
    status = status_of(failed.error)
    details = problem(
        status, failed.error, f"{lost} of {len(stored)} records not stored: {failed.message}"
    )
    body = StoreProblem(**msgspec.structs.asdict(details), records=stored)
    return respond(body, status, retry_headers(status), media_type=PROBLEM_TYPE)


def _read_records(sent: RecordsSent | _TextsSent, now: TimestampMs) -> list[Record]:
    """Raises RefusedError with the number of the invalid record."""
    records: list[Record] = []
    try:
        if isinstance(sent, _TextsSent):
            _read_texts(sent, now, records)
        else:
            _read_raws(sent, now, records)
    except (msgspec.DecodeError, binascii.Error, UnicodeError) as error:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"Record {len(records)} does not match its encoding: {error}"
        ) from None
    return records


def _read_texts(sent: _TextsSent, now: TimestampMs, records: list[Record]) -> None:
    key_encoding, value_encoding = sent.key_encoding, sent.value_encoding
    append = records.append
    is_text = key_encoding == value_encoding == "text"
    for one in sent.records:
        key: bytes | str | None = one.key
        value: bytes | str | None = one.value
        if is_text:
            key = key.encode() if isinstance(key, str) else None
            value = value.encode() if isinstance(value, str) else None
        else:
            key = _read_text(one.key, key_encoding)
            value = _read_text(one.value, value_encoding)
        headers: Headers = []
        if one.headers:
            headers = _read_headers(one.headers, sent.header_encoding)
        timestamp = one.timestamp
        fields = (0, now if timestamp is None else timestamp, key, value, headers)
        append(_new_record(Record, fields))


def _read_raws(sent: RecordsSent, now: TimestampMs, records: list[Record]) -> None:
    for one in sent.records:
        fields = (
            0,
            now if one.timestamp is None else one.timestamp,
            _read_field(one.key, sent.key_encoding),
            _read_field(one.value, sent.value_encoding),
            _read_headers(one.headers, sent.header_encoding),
        )
        records.append(_new_record(Record, fields))


def _read_headers(sent: tuple[tuple[str, str | None], ...], encoding: HeaderEncoding) -> Headers:
    return [(name, _read_text(text, encoding)) for name, text in sent]


def _read_field(raw: Raw, encoding: Encoding) -> bytes | None:
    data = bytes(raw)
    if data == b"null":
        return None
    if encoding == "json":
        if not data.isascii():
            # Raw JSON is not checked for valid UTF-8 by the decoder.
            data.decode()
        return data
    text = _decode_text(data)
    return _read_text(text, encoding)


def _read_text(text: str | None, encoding: Encoding) -> bytes | None:
    if text is None:
        return None
    if encoding == "text":
        return text.encode()
    return base64.b64decode(text.encode("ascii"), validate=True)
