"""Generates docs/reference/grpc.md from the .proto file and its comments.

    python proto/reference.py [FILE]     writes the page, or FILE

tests/proto/test_reference.py compares the committed page.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
)

from moldau.edge.grpc.errors import ErrorStatus
from moldau.edge.grpc.listener import DEFAULT_LIMITS
from moldau.proto.v1 import queue_pb2

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "moldau/v1/queue.proto"
DOCUMENT = ROOT / "docs" / "reference" / "grpc.md"

_MESSAGES, _ENUMS, _SERVICES, _SYNTAX = 4, 5, 6, 12
_FIELDS, _NESTED, _NESTED_ENUMS, _VALUES, _METHODS = 2, 3, 4, 2, 2
"""Field numbers of descriptors; paths of comments consist of them."""

Places = dict[tuple[int, ...], str]

_HEAD = """\
# gRPC

<!-- Generated from proto/moldau/v1/queue.proto by `python proto/reference.py`.
     Do not edit: change the comments there and run it again. -->

"""
_USE = """\
Every broker serves it on `grpc.addr` (`127.0.0.1:8000` unless set; the n-th broker of
`moldau cluster start` has 8000 + n − 1). Server reflection is on: tools need only the address.

```console
$ grpcurl -plaintext localhost:8000 list
$ grpcurl -plaintext -d '{"topic": "jobs"}' localhost:8000 moldau.v1.Queue/CreateTopic
$ grpcurl -plaintext -d '{"topic": "jobs", "message": {"value": "aGVsbG8="}}' \\
      localhost:8000 moldau.v1.Queue/Send
```

`grpc.health.v1.Health` reports SERVING for `moldau.v1.Queue`, and NOT_SERVING once the broker
stops; waiting calls then fail with UNAVAILABLE.

With `grpc.authentication = users` each call needs the metadata `authorization`: `Basic` with user
and password, or `Bearer` with a token of [POST /api/v1/login](http.md#authentication), of an OIDC
provider, or the content of `admin.token`. A client certificate (`grpc.security = mtls`) is enough
as well. Without these a call fails with UNAUTHENTICATED; without the rights, with
PERMISSION_DENIED. A stream ends when its token expires. Health checks need no user; reflection
needs one, but no rights. Without authentication, every client that reaches the address can do
everything: keep it on loopback.

A request has at most %(request)d MiB, and must arrive within %(arrival)d seconds. A response of
Poll or ReadFrom stays below 4 MiB, the default limit of clients; a single message may exceed it.
Each broker accepts %(connections)s connections and %(calls)s concurrent calls, of them %(checks)d
health checks; of more, the oldest ends with RESOURCE_EXHAUSTED. Clients may send
keepalive pings every %(ping)d seconds. A connection without calls is closed after %(idle)d seconds;
clients reconnect by themselves. Connections have no limit per address: see
[Hardening](../security.md#hardening).

"""
_REFUSED = """\

## Errors

A failed call has a gRPC status and a message. Its trailers have `moldau-reason` for programs, and
optionally `moldau-hint`, what to do next, percent-encoded, since trailers are ASCII.
`moldau-uncertain` is `true` if a send failed but may have been stored. `moldau-retry-ms` is how
long a client over its quota has to wait.

"""
_REASONS_ANCHOR = "errors"


def main(arguments: list[str]) -> None:
    path = Path(arguments[0]) if arguments else DOCUMENT
    path.write_text(render(), encoding="utf-8")
    print(path)


def render() -> str:
    """The whole page."""
    file = _compile()
    places = _comments(file)
    (service,) = file.service
    limits = DEFAULT_LIMITS
    parts = [
        _HEAD,
        _paragraphs(places[(_SYNTAX,)]),
        "\n",
        _USE
        % {
            "request": limits.request_bytes_max // 2**20,
            "connections": f"{limits.connections_max:,}",
            "calls": f"{limits.calls_max:,}",
            "checks": limits.health_calls_max,
            "arrival": limits.request_ms_max // 1000,
            "ping": limits.ping_ms_min // 1000,
            "idle": limits.idle_ms_max // 1000,
        },
        f"## Calls of `{file.package}.{service.name}`\n\n",
        "| call | request | response |\n|---|---|---|\n",
    ]
    parts += [_call_row(method) for method in service.method]
    for number, method in enumerate(service.method):
        parts.append(f"\n### {method.name}\n\n")
        parts.append(_paragraphs(places[(_SERVICES, 0, _METHODS, number)]))
    parts += [_REFUSED, *_reasons(file, places)]
    parts.append("\n## Messages\n")
    for number, message in enumerate(file.message_type):
        parts += _message(message, message.name, (_MESSAGES, number), places)
    parts.append("\n## Enumerations\n")
    for number, enum in enumerate(file.enum_type):
        if enum.name != "Reason":
            parts += _enum(enum, enum.name, (_ENUMS, number), places)
    return "".join(parts)


def _compile() -> FileDescriptorProto:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "queue.desc"
        command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", "--include_source_info"]
        subprocess.run(
            [*command, f"--descriptor_set_out={out}", SOURCE], cwd=ROOT, check=True, timeout=60
        )
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return file


def _comments(file: FileDescriptorProto) -> Places:
    return {
        tuple(location.path): location.leading_comments
        for location in file.source_code_info.location
        if location.leading_comments
    }


def _paragraphs(comment: str) -> str:
    lines = [line.strip() for line in comment.strip("\n").splitlines()]
    return "\n".join(lines) + "\n"


def _sentence(comment: str) -> str:
    """For a cell of a table."""
    return " ".join(comment.split()).replace("|", "\\|")


def _call_row(method: MethodDescriptorProto) -> str:
    request = _link(method.input_type, many=method.client_streaming)
    response = _link(method.output_type, many=method.server_streaming)
    return f"| [{method.name}](#{method.name.lower()}) | {request} | {response} |\n"


def _link(full_name: str, *, many: bool = False) -> str:
    name = full_name.removeprefix(".moldau.v1.")
    place = _REASONS_ANCHOR if name == "Reason" else name.lower().replace(".", "")
    return f"{'stream of ' if many else ''}[{name}](#{place})"


def _reasons(file: FileDescriptorProto, places: Places) -> Iterator[str]:
    number, enum = next((n, enum) for n, enum in enumerate(file.enum_type) if enum.name == "Reason")
    yield "| reason | status | meaning |\n|---|---|---|\n"
    for at, value in enumerate(enum.value):
        if value.number:
            status = ErrorStatus(queue_pb2.Reason.Value(value.name), "").code.name
            meaning = _sentence(places.get((_ENUMS, number, _VALUES, at), ""))
            yield f"| `{value.name}` | {status} | {meaning} |\n"


def _message(
    message: DescriptorProto, name: str, place: tuple[int, ...], places: Places
) -> Iterable[str]:
    if message.options.map_entry:
        return
    yield f"\n### {name}\n\n"
    if comment := places.get(place):
        yield _paragraphs(comment) + "\n"
    if not message.field:
        yield "It has no fields.\n"
    else:
        yield "| field | type | meaning |\n|---|---|---|\n"
    maps = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    for number, field in enumerate(message.field):
        meaning = _sentence(places.get((*place, _FIELDS, number), ""))
        yield f"| `{field.name}` | {_type(message, field, maps)} | {meaning} |\n"
    for number, nested in enumerate(message.nested_type):
        yield from _message(nested, f"{name}.{nested.name}", (*place, _NESTED, number), places)
    for number, enum in enumerate(message.enum_type):
        yield from _enum(enum, f"{name}.{enum.name}", (*place, _NESTED_ENUMS, number), places)


def _type(
    message: DescriptorProto, field: FieldDescriptorProto, maps: dict[str, DescriptorProto]
) -> str:
    kind = field.type_name.rpartition(".")[2]
    if kind in maps:
        key, value = maps[kind].field
        return f"map of {_plain(key)} to {_plain(value)}"
    text = _plain(field)
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {text}"
    if field.proto3_optional:
        return f"optional {text}"
    if field.HasField("oneof_index"):
        return f"{text}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return text


def _plain(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return _link(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _enum(
    enum: EnumDescriptorProto, name: str, place: tuple[int, ...], places: Places
) -> Iterable[str]:
    yield f"\n### {name}\n\n"
    if comment := places.get(place):
        yield _paragraphs(comment) + "\n"
    yield "| value | number | meaning |\n|---|---|---|\n"
    for number, value in enumerate(enum.value):
        meaning = _sentence(places.get((*place, _VALUES, number), ""))
        yield f"| `{value.name}` | {value.number} | {meaning} |\n"


if __name__ == "__main__":
    main(sys.argv[1:])
