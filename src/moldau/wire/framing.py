"""Frames: the length, the request header and the response header.

Two special cases of the protocol are handled here. The client id in a request header is never
compact, even in flexible versions. The response to ApiVersions always has the old header, because a
client that uses a newer version must be able to read the error.
"""

import struct
from typing import Final, NamedTuple

from moldau.model.errors import PeerProtocolError
from moldau.model.slices import Chunk, FileSlice
from moldau.wire.registry import APIS, NEVER_FLEXIBLE, ApiKey
from moldau.wire.schema import Request
from moldau.wire.take import take
from moldau.wire.varint import read_tags_end

LENGTH_BYTES: Final = 4
BODY_UNKNOWN: Final = -1

_FIXED: Final = struct.Struct(">hhih")
_unpack_fixed: Final = _FIXED.unpack_from
_IDENTITY: Final = struct.Struct(">hhi")
_RESPONSE_OLD: Final = struct.Struct(">ii")
_RESPONSE_FLEXIBLE: Final = struct.Struct(">iix")
_CORRELATION: Final = struct.Struct(">i")
_FIRST_CHUNK_JOINED_BYTES_MAX: Final = 64 * 1024

# Per key, as plain tuples and numbers, because these two are used for every request.
_REQUEST_RULES: Final = {int(key): (*api.versions, api.flexible) for key, api in APIS.items()}
_RESPONSE_FLEXIBLE_FIRST: Final = {
    int(key): NEVER_FLEXIBLE if key == ApiKey.API_VERSIONS else api.flexible
    for key, api in APIS.items()
}


class RequestHeader(NamedTuple):
    """The header of a request, and where in the frame its body begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int
    """BODY_UNKNOWN if the API or its version is unknown: then only the first three are set."""


RequestFields = tuple[int, int, int, str | None, int]
"""Those of a RequestHeader, in the same order."""


def read_request_header(frame: memoryview) -> RequestHeader:
    """Read the header of `frame`, given without its length."""
    return RequestHeader(*read_request_fields(frame))


def read_request_fields(frame: memoryview) -> RequestFields:
    """As read_request_header, for every request of a broker: without an object for its result."""
    size = len(frame)
    if size < 10:
        return _read_identity(frame)
    api_key: int
    version: int
    correlation_id: int
    length: int
    api_key, version, correlation_id, length = _unpack_fixed(frame)
    rules = _REQUEST_RULES.get(api_key)
    if rules is None:
        return api_key, version, correlation_id, None, BODY_UNKNOWN
    first, last, flexible = rules
    if not first <= version <= last:
        return api_key, version, correlation_id, None, BODY_UNKNOWN
    position = 10
    client_id: str | None = None
    if length >= 0:
        position += length
        if position > size:
            raise PeerProtocolError("the client id exceeds the end of the request")
        try:
            client_id = take(frame, 10, length).decode()
        except UnicodeDecodeError as error:
            raise PeerProtocolError(f"the client id is not UTF-8: {error}") from error
    elif length != -1:
        raise PeerProtocolError("the client id has a negative length")
    if version >= flexible:
        # Almost always an empty section: one zero byte.
        if position < size and not frame[position]:
            position += 1
        else:
            try:
                position = read_tags_end(frame, position)
            except IndexError as end:
                raise PeerProtocolError("the request ends inside its header") from end
    return api_key, version, correlation_id, client_id, position


def _read_identity(frame: memoryview) -> RequestFields:
    """The header of a frame that is too short for a known API: only the fixed part."""
    if len(frame) < _IDENTITY.size:
        raise PeerProtocolError(f"a request of {len(frame)} bytes is shorter than a header")
    api_key, version, correlation_id = _IDENTITY.unpack_from(frame)
    api = APIS.get(api_key)
    if api is not None and version in api.versions:
        raise PeerProtocolError("the request ends inside its header")
    return api_key, version, correlation_id, None, BODY_UNKNOWN


def frame_response(
    api_key: int, version: int, correlation_id: int, chunks: list[Chunk]
) -> list[Chunk]:
    """Prepend length and header to an encoded body; a small response stays one chunk."""
    size = 0
    for chunk in chunks:
        size += len(chunk)
    if version >= _RESPONSE_FLEXIBLE_FIRST.get(api_key, NEVER_FLEXIBLE):
        head = _RESPONSE_FLEXIBLE.pack(size + 5, correlation_id)
    else:
        head = _RESPONSE_OLD.pack(size + 4, correlation_id)
    return _join_head(head, chunks)


def frame_request(
    message: Request, version: int, correlation_id: int, client_id: str | None
) -> list[Chunk]:
    """Encode a request with length and header."""
    chunks = message.encode(version)
    name = b"" if client_id is None else client_id.encode()
    head = _FIXED.pack(
        message.API_KEY, version, correlation_id, -1 if client_id is None else len(name)
    )
    head += name
    if version >= message.FLEXIBLE:
        head += b"\0"
    size = len(head) + sum(len(chunk) for chunk in chunks)
    return _join_head(size.to_bytes(LENGTH_BYTES, "big") + head, chunks)


def read_response_header(frame: memoryview, api_key: int, version: int) -> tuple[int, int]:
    """The correlation id of a response (without its length) and where its body begins."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        if version >= _RESPONSE_FLEXIBLE_FIRST.get(api_key, NEVER_FLEXIBLE):
            return correlation_id, read_tags_end(frame, _CORRELATION.size)
    except (struct.error, IndexError) as error:
        raise PeerProtocolError("the response ends inside its header") from error
    return correlation_id, _CORRELATION.size


def _join_head(head: bytes, chunks: list[Chunk]) -> list[Chunk]:
    if not chunks:
        return [head]
    first = chunks[0]
    if isinstance(first, FileSlice) or len(first) > _FIRST_CHUNK_JOINED_BYTES_MAX:
        return [head, *chunks]
    if len(chunks) == 1:
        return [head + first]
    return [head + first, *chunks[1:]]
