"""A whole broker, by all of its protocols: what clients and peers send reaches the real handlers.

Kafka: parts of an input are requests on one connection; the first two bytes choose API and version,
the header is made here. HTTP: method and path, headers, body. gRPC: a method, and its messages.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from fuzz.broker import GRPC_PORT, HTTP_PORT, KAFKA_PORT, RAFT_PORT, FuzzedBroker
from fuzz.parts import in_memory, join, split
from fuzz.samples import message
from fuzz.target import KIBIBYTE, Target, check
from moldau.edge.kafka.served_apis import APIS as SERVED_APIS
from moldau.model.ids import BrokerId
from moldau.net.peers.handshake import Hello, encode_hello
from moldau.proto.v1 import queue_pb2 as pb
from moldau.wire.registry import APIS, REQUESTS, ApiKey

_RAW: Final = 255
"""Instead of the key of an API: the rest of the part is sent as it is."""
_LENGTH_BYTES: Final = 4
_REQUESTS_MAX: Final = 6
_BROKER: Final = FuzzedBroker()
_SERVED: Final = sorted(SERVED_APIS)


def _kafka_frame(part: bytes, number: int) -> bytes:
    if len(part) < 2:
        return b""
    if part[0] == _RAW:
        return part[1:]
    key = part[0] if part[0] in SERVED_APIS else _SERVED[part[0] % len(_SERVED)]
    api = APIS[key]
    first, last = SERVED_APIS[api].versions
    version = first + part[1] % (last - first + 1)
    head = int(api).to_bytes(2, "big") + version.to_bytes(2, "big") + number.to_bytes(4, "big")
    head += b"\0\1f" + (b"\0" if version >= api.flexible else b"")
    return (len(head) + len(part) - 2).to_bytes(_LENGTH_BYTES, "big") + head + part[2:]


def _send_kafka(data: bytes) -> None:
    parts = split(data)[:_REQUESTS_MAX]
    _BROKER.send(KAFKA_PORT, [_kafka_frame(part, place) for place, part in enumerate(parts)])


def _send_frames(data: bytes) -> None:
    """Replies do not depend on how the bytes of a connection are cut into pieces."""
    size, stream = (data[0] % 64) + 1 if data else 1, data[1:]
    if not _is_repeatable(stream):
        return
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    whole = _BROKER.converse(KAFKA_PORT, [stream])
    check(_BROKER.converse(KAFKA_PORT, pieces) == whole, "replies depend on the size of packets")


def _is_repeatable(stream: bytes) -> bool:
    """Whether all requests in it change nothing, so that a second time gives the same."""
    position = 0
    while position < len(stream):
        size = int.from_bytes(stream[position : position + 4], "big")
        key = int.from_bytes(stream[position + 4 : position + 6], "big")
        version = int.from_bytes(stream[position + 6 : position + 8], "big")
        if key in SERVED_APIS and version >= _CHANGES_FROM.get(key, 0):
            return False
        position += 4 + size
    return True


_NEVER: Final = 1 << 16
_CHANGES_FROM: Final[dict[int, int]] = {
    ApiKey.API_VERSIONS: _NEVER,
    ApiKey.METADATA: _NEVER,
    ApiKey.LIST_GROUPS: _NEVER,
    # It may open a fetch session, which gets the next id.
    ApiKey.FETCH: 7,
}
"""The first version of an API that changes something; of those that are not here all do."""


def _send_http(data: bytes) -> None:
    parts = [*split(data), b"", b"", b""]
    line, headers, body = parts[:3]
    method, _, path = line.partition(b" ")
    request = method + b" " + path.replace(b" ", b"%20") + b" HTTP/1.1\r\n"
    request += b"host: localhost\r\nconnection: close\r\n" + headers
    if body:
        request += b"content-length: %d\r\n" % len(body)
    _BROKER.send(HTTP_PORT, [request + b"\r\n" + body])


def _send_http_raw(data: bytes) -> None:
    _BROKER.send(HTTP_PORT, split(data)[:_REQUESTS_MAX])


_METHODS: Final[dict[str, type[Any]]] = {
    method.name: getattr(pb, method.input_type.name)
    for method in pb.DESCRIPTOR.services_by_name["Queue"].methods
}
_METHOD_NAMES: Final = sorted(_METHODS)


def _call_frames(number: int, part: bytes) -> Iterator[bytes]:
    """A call with one message, and its end; as sim/grpc.py frames it."""
    method = _METHOD_NAMES[part[0] % len(_METHOD_NAMES)]
    for frame in ((number, 0, method, 500), (number, 1, "", 0, part[1:]), (number, 2)):
        encoded = msgspec.msgpack.encode(frame)
        yield len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded


def _send_grpc(data: bytes) -> None:
    pieces: list[bytes] = []
    for number, part in enumerate(split(data)[:_REQUESTS_MAX], 1):
        if part:
            pieces.append(b"".join(_call_frames(number, part)))
    _BROKER.send(GRPC_PORT, pieces)


def _send_peer(data: bytes) -> None:
    parts = split(data)[:_REQUESTS_MAX]
    _BROKER.send(RAFT_PORT, [len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in parts])


# ---- seeds


def _kafka_part(api: ApiKey, version: int, body: bytes | None = None) -> bytes:
    if body is None:
        body = in_memory(message(REQUESTS[api], version).encode(version))
    return bytes((api, version - SERVED_APIS[api].versions[0])) + body


_BY_NAME: Final = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}
"""The last versions that name topics: no seed can know the id of a topic."""


def _kafka_seeds() -> Iterator[tuple[str, bytes]]:
    for key in _SERVED:
        api = APIS[key]
        for version in sorted({*SERVED_APIS[key].versions, _BY_NAME.get(api, api.versions.last)}):
            if version in range(SERVED_APIS[key].versions[0], SERVED_APIS[key].versions[1] + 1):
                yield f"{api.name.lower()}-v{version}", join([_kafka_part(api, version)])
    # Raw bytes: a length that lies, and another protocol.
    yield "length", join([bytes((_RAW,)) + b"\x7f\xff\xff\xff"])
    yield "http", join([bytes((_RAW,)) + b"GET / HTTP/1.1\r\n\r\n"])
    made = in_memory(message(REQUESTS[ApiKey.PRODUCE], 12).encode(12))
    for topic in (b"c", b"z"):
        body = made.replace(b"\x02a", b"\x02" + topic)
        yield f"produce-to-{topic.decode()}", join([_kafka_part(ApiKey.PRODUCE, 12, body)])
    steps = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH)
    yield "story", join([_kafka_part(api, _BY_NAME[api]) for api in steps])


def _frame_seeds() -> Iterator[tuple[str, bytes]]:
    parts = [
        _kafka_part(ApiKey.API_VERSIONS, 3),
        _kafka_part(ApiKey.LIST_GROUPS, 4),
        _kafka_part(ApiKey.METADATA, 9),
        _kafka_part(ApiKey.FETCH, 12),
    ]
    stream = b"".join(_kafka_frame(part, number) for number, part in enumerate(parts))
    yield "four", b"\x05" + stream
    yield "cut", b"\x0d" + stream[:-3]
    yield "length", b"\x01" + stream[:40] + b"\xff\xff\xff\xff"


_JSON: Final = b"content-type: application/json\r\n"
_HTTP: Final = {
    "root": (b"GET /", b"", b""),
    "metrics": (b"GET /metrics", b"", b""),
    "topics": (b"GET /api/v1/topics?limit=5", b"", b""),
    "create": (b"POST /api/v1/topics", _JSON, b'{"name":"n","partitions":1,"configs":{}}'),
    "topic": (b"GET /api/v1/topics/a", b"", b""),
    "delete": (b"DELETE /api/v1/topics/n", b"", b""),
    "records": (b"GET /api/v1/topics/a/partitions/0/records?offset=0&limit=3", b"", b""),
    "produce": (
        b"POST /api/v1/topics/a/records",
        _JSON,
        b'{"records":[{"key":"k","value":{"x":1},"headers":[{"key":"h","value":"v"}],'
        b'"timestamp":5,"partition":0}]}',
    ),
    "tail": (b"GET /api/v1/topics/a/tail?from=beginning", b"accept: text/event-stream\r\n", b""),
    "groups": (b"GET /api/v1/groups", b"", b""),
    "group": (b"GET /api/v1/groups/a", b"", b""),
    "queues": (b"GET /api/v1/queues", b"", b""),
    "brokers": (b"GET /api/v1/brokers/1", b"", b""),
    "topology": (b"GET /api/v1/topology", b"", b""),
    "join": (
        b"POST /api/v1/cluster/join",
        _JSON,
        b'{"kafka":["h",1],"raft":["h",2],"http":["h",3],"incarnation":"i","process":"p"}',
    ),
    "leave": (b"POST /api/v1/cluster/leave", _JSON, b'{"broker":9}'),
    "cors": (b"OPTIONS /api/v1/topics", b"origin: http://x\r\n", b""),
}


def _http_seeds() -> Iterator[tuple[str, bytes]]:
    for name, parts in _HTTP.items():
        yield name, join(parts)


def _http_raw_seeds() -> Iterator[tuple[str, bytes]]:
    yield "get", join([b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"])
    yield (
        "chunked",
        join(
            [
                b"POST /api/v1/topics HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n",
                b'e\r\n{"name":"abc"}\r\n0\r\n\r\n',
            ]
        ),
    )
    yield "pipelined", join([b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n" * 2])


def _grpc_seeds() -> Iterator[tuple[str, bytes]]:
    for name, kind in _METHODS.items():
        made = _filled(kind(), depth=3)
        encoded = made.SerializeToString()
        yield name, join([bytes((_METHOD_NAMES.index(name),)) + encoded])


def _filled(made: Any, depth: int) -> Any:
    """A message with a value in every field."""
    for field in made.DESCRIPTOR.fields:
        if field.message_type is not None:
            if depth and field.message_type.GetOptions().map_entry is False:
                part = getattr(made, field.name)
                _filled(part.add() if field.is_repeated else part, depth - 1)
                if not field.is_repeated:
                    part.SetInParent()
            continue
        value: Any = {"string": "a", "bytes": b"a", "float": 1.5}.get(_kind(field), 1)
        if field.is_repeated:
            getattr(made, field.name).append(value)
        else:
            setattr(made, field.name, value)
    return made


def _kind(field: Any) -> str:
    return {9: "string", 12: "bytes", 1: "float", 2: "float"}.get(field.type, "number")


def _peer_seeds() -> Iterator[tuple[str, bytes]]:
    hello = Hello("c", BrokerId(2), "i", BrokerId(1))
    yield "hello", join([encode_hello(hello), b"\x02" + bytes(40)])


def _target(
    name: str,
    about: str,
    run: Callable[[bytes], None],
    seeds: Callable[[], Iterator[tuple[str, bytes]]],
    bytes_max: int = 2 * KIBIBYTE,
) -> Target:
    return Target(
        name=name,
        about=about,
        run=run,
        allowed=(),
        seeds=seeds,
        bytes_max=bytes_max,
        seconds_max=20.0,
        reset=_BROKER.reset,
    )


TARGETS: Final = [
    _target(
        "broker-kafka", "requests of Kafka clients, down to the log", _send_kafka, _kafka_seeds
    ),
    _target(
        "broker-frames", "requests in pieces of any size", _send_frames, _frame_seeds, KIBIBYTE
    ),
    _target("broker-http", "HTTP requests with any body", _send_http, _http_seeds),
    _target("broker-httpraw", "bytes on the HTTP port", _send_http_raw, _http_raw_seeds),
    _target("broker-grpc", "gRPC calls with any message", _send_grpc, _grpc_seeds),
    _target("broker-peers", "bytes on the port of peers", _send_peer, _peer_seeds, KIBIBYTE),
]
