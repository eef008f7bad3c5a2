"""Kafka messages: headers, and every request and response in every version.

The first two bytes of an input choose the API and the version, the rest is the body. What decodes
is encoded and decoded again, and must stay the same.
"""

from collections.abc import Iterator
from typing import Final, TypeVar

from fuzz.parts import in_memory
from fuzz.samples import message
from fuzz.target import Target, check
from moldau.model.errors import PeerProtocolError
from moldau.wire.framing import frame_request, read_request_header, read_response_header
from moldau.wire.registry import APIS, REQUESTS, RESPONSES, ApiKey, MessageTypes
from moldau.wire.schema import Message

M = TypeVar("M", bound=Message)

_KEYS: Final = sorted(APIS)


def _chosen(data: bytes) -> tuple[ApiKey, int]:
    api = APIS[data[0] if data[0] in APIS else _KEYS[data[0] % len(_KEYS)]]
    first, last = api.versions
    return api, first + data[1] % (last - first + 1)


def _choice(api: ApiKey, version: int) -> bytes:
    return bytes((api, version - api.versions.first))


def _round_trip(cls: type[Message], version: int, body: bytes) -> None:
    decoded = cls.decode(memoryview(body), version)
    once = in_memory(decoded.encode(version))
    # As bytes: a NaN does not equal itself.
    again = in_memory(cls.decode(memoryview(once), version).encode(version))
    check(once == again, f"{cls.__name__} v{version} changes when it is decoded and encoded")


def _decode_request(data: bytes) -> None:
    if len(data) > 2:
        api, version = _chosen(data)
        _round_trip(REQUESTS[api], version, data[2:])


def _decode_response(data: bytes) -> None:
    if len(data) > 2:
        api, version = _chosen(data)
        _round_trip(RESPONSES[api], version, data[2:])


def _read_headers(data: bytes) -> None:
    view = memoryview(data)
    header = read_request_header(view)
    api = APIS.get(header.api_key)
    check(header.body_position <= len(data), "a body begins beyond the end of its frame")
    if api is not None and header.body_position >= 0:
        check(header.api_version in api.versions, "a header of an unknown version has a body")
        _, position = read_response_header(view, api, header.api_version)
        check(position <= len(data), "a response begins beyond the end of its frame")


def _seeds(messages: MessageTypes[M]) -> Iterator[tuple[str, bytes]]:
    for key in _KEYS:
        api = APIS[key]
        for version in sorted({api.versions.first, api.versions.last}):
            body = in_memory(message(messages[key], version).encode(version))
            yield f"{api.name.lower()}-v{version}", _choice(api, version) + body


def _header_seeds() -> Iterator[tuple[str, bytes]]:
    for key in (ApiKey.PRODUCE, ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE):
        for version in (key.versions.first, key.versions.last):
            framed = frame_request(message(REQUESTS[key], version), version, 7, "client")
            yield f"{key.name.lower()}-v{version}", in_memory(framed)[4:40]


TARGETS: Final = [
    Target(
        name="wire-headers",
        about="headers of requests and responses",
        run=_read_headers,
        allowed=(PeerProtocolError,),
        seeds=_header_seeds,
        bytes_max=512,
    ),
    Target(
        name="wire-requests",
        about="every request in every version",
        run=_decode_request,
        allowed=(PeerProtocolError,),
        seeds=lambda: _seeds(REQUESTS),
    ),
    Target(
        name="wire-responses",
        about="every response in every version",
        run=_decode_response,
        allowed=(PeerProtocolError,),
        seeds=lambda: _seeds(RESPONSES),
    ),
]
