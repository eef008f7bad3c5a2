"""Headers and lengths around bodies."""

from pathlib import Path

import pytest
from kafka.protocol.metadata import ApiVersionsRequest as OtherApiVersionsRequest
from kafka.protocol.metadata import MetadataRequest as OtherMetadataRequest
from sliced import opened

from moldau.model.errors import PeerProtocolError
from moldau.model.slices import Chunk, FileSlice
from moldau.wire.framing import (
    BODY_UNKNOWN,
    RequestHeader,
    frame_request,
    frame_response,
    read_request_header,
    read_response_header,
)
from moldau.wire.messages.api_versions import ApiVersionsRequest
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.wire.registry import ApiKey


def joined(chunks: list[Chunk]) -> bytes:
    return b"".join(bytes(len(c)) if isinstance(c, FileSlice) else c for c in chunks)


@pytest.mark.parametrize("version", range(14))
def test_a_framed_request_equals_that_of_kafka_python(version: int) -> None:
    topics: list[MetadataRequestTopic] | None = [] if version == 0 else None
    ours = joined(frame_request(MetadataRequest(topics=topics), version, 77, "me"))
    other = OtherMetadataRequest(version=version, topics=topics, allow_auto_topic_creation=True)
    other.with_header(correlation_id=77, client_id="me")
    assert ours == bytes(other.encode(header=True, framed=True))


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("client_id", [None, "", "me", "ü" * 200])
def test_the_header_of_a_request_is_read_up_to_its_body(version: int, client_id: str) -> None:
    request = ApiVersionsRequest(client_software_name="n", client_software_version="1")
    frame = memoryview(joined(frame_request(request, version, 5, client_id)))[4:]
    header = read_request_header(frame)
    assert header[:4] == (ApiKey.API_VERSIONS, version, 5, client_id)
    decoded = ApiVersionsRequest.decode(frame, version, header.body_position)
    assert decoded.client_software_name == ("n" if version >= 3 else "")


@pytest.mark.parametrize("version", range(5))
def test_the_header_of_kafka_python_is_read(version: int) -> None:
    other = OtherApiVersionsRequest(
        version=version, client_software_name="kp", client_software_version="3"
    )
    other.with_header(correlation_id=9, client_id="someone")
    header = read_request_header(memoryview(bytes(other.encode(header=True))))
    assert header[:4] == (18, version, 9, "someone")


def test_tagged_fields_in_the_header_are_skipped() -> None:
    plain = b"\x00\x03\x00\x09\0\0\0\x01\0\x02me"
    assert read_request_header(memoryview(plain + b"\0rest")).body_position == len(plain) + 1
    tagged = plain + b"\x01\x07\x02ab"
    assert read_request_header(memoryview(tagged + b"rest")).body_position == len(tagged)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x12\x00\x63\0\0\0\x07",  # ApiVersions 99, nothing behind the correlation id
        b"\x00\x12\x00\x63\0\0\0\x07\xff\xff\0garbage",
        b"\x03\xe7\x00\x00\0\0\0\x07",  # API 999
        b"\x00\x00\xff\xff\0\0\0\x07\0\x02me",  # Produce -1
    ],
)
def test_of_an_unknown_api_or_version_only_the_identity_is_read(frame: bytes) -> None:
    header = read_request_header(memoryview(frame))
    assert header.correlation_id == 7
    assert header.client_id is None
    assert header.body_position == BODY_UNKNOWN


@pytest.mark.parametrize("version", [0, 9])
def test_a_header_cut_anywhere_is_refused(version: int) -> None:
    request = MetadataRequest(topics=[])
    frame = memoryview(joined(frame_request(request, version, 5, "client")))[4:]
    header = read_request_header(frame)
    for size in range(header.body_position):
        with pytest.raises(PeerProtocolError):
            read_request_header(frame[:size])


@pytest.mark.parametrize(
    "tail", [b"\x7f\xffx", b"\xff\xfe", b"\0\x02\xc3\x28", b"\0\0\x01\x05\xff\xff\xff\xff\x0f"]
)
def test_a_broken_client_id_or_tag_section_is_refused(tail: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        read_request_header(memoryview(b"\x00\x03\x00\x09\0\0\0\x01" + tail))


def test_a_client_id_of_negative_length_is_refused() -> None:
    with pytest.raises(PeerProtocolError, match="negative"):
        read_request_header(memoryview(b"\x00\x03\x00\x00\0\0\0\x01\xff\xfe"))


def test_a_response_carries_its_length_and_the_header_of_its_version() -> None:
    assert frame_response(ApiKey.METADATA, 8, 3, [b"body"]) == [b"\0\0\0\x08\0\0\0\x03body"]
    assert frame_response(ApiKey.METADATA, 9, 3, [b"body"]) == [b"\0\0\0\x09\0\0\0\x03\0body"]


def test_the_response_to_api_versions_always_has_the_old_header() -> None:
    for version in (0, 3, 4, 99):
        framed = frame_response(ApiKey.API_VERSIONS, version, 3, [b"body"])
        assert framed == [b"\0\0\0\x08\0\0\0\x03body"]


def test_a_response_to_an_unknown_api_has_the_old_header() -> None:
    assert frame_response(999, 0, 3, [b"x"]) == [b"\0\0\0\x05\0\0\0\x03x"]


def test_the_length_counts_chunks_that_are_not_read() -> None:
    with opened(Path(__file__)) as file:
        data = FileSlice(file, 0, 1000)
        chunks = frame_response(ApiKey.FETCH, 12, 3, [b"head", data, b"\0"])
    assert chunks[0] == (1000 + 4 + 1 + 5).to_bytes(4, "big") + b"\0\0\0\x03\0head"
    assert chunks[1:] == [data, b"\0"]


def test_a_large_first_chunk_is_not_copied() -> None:
    large = bytes(1 << 20)
    chunks = frame_response(ApiKey.METADATA, 9, 3, [large])
    assert chunks[1] is large
    assert len(chunks[0]) == 9


@pytest.mark.parametrize(("version", "position"), [(8, 4), (9, 5)])
def test_the_header_of_a_response_is_read_up_to_its_body(version: int, position: int) -> None:
    framed = joined(frame_response(ApiKey.METADATA, version, 3, [b"body"]))
    assert read_response_header(memoryview(framed)[4:], ApiKey.METADATA, version) == (3, position)
    for size in range(position):
        with pytest.raises(PeerProtocolError):
            read_response_header(memoryview(framed)[4 : 4 + size], ApiKey.METADATA, version)


def test_a_request_header_is_a_plain_tuple() -> None:
    assert RequestHeader(0, 1, 2, None, 3) == (0, 1, 2, None, 3)
