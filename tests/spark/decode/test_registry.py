"""Values by the schemas that they were written with: found by id, resolved, never guessed."""

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode import decoder
from moldau.spark.decode.registry import RegistryError, registry_at

pytestmark = pytest.mark.inprocess


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    listed = [{"name": name, "type": kind} for name, kind in fields]
    for field in listed:
        if field["name"] in more:
            field["default"] = more[field["name"]]
    return {"type": "record", "name": "Order", "fields": listed}


OLD = record(("net", "long"), ("gross", "long"))
SWAPPED = record(("gross", "long"), ("net", "long"))
ID = {"properties": {"id": {"type": "integer"}}}
READER = record(("net", "long"), ("gross", "long"), ("currency", "string"), currency="EUR")


def framed(schema_id: int, schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for schema_id, schema in ((1, OLD), (2, SWAPPED)):
        (tmp_path / f"{schema_id}.avsc").write_text(json.dumps(schema))
    return tmp_path


class Served(ThreadingHTTPServer):
    """What a registry says of its schemas, by path; it may be told to fail."""

    def __init__(self) -> None:
        self.schemas: dict[str, dict[str, Any]] = {}
        self.status = 200
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        served: Any = self.server
        path = self.path.partition("?")[0]
        served.asked.append(self.path)
        found = served.schemas.get(path)
        status = served.status if served.status != 200 else 200 if found else 404
        answer = found if status == 200 else {"error_code": status * 100 + 3, "message": "no"}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.safety
def test_fields_in_another_order_are_not_swapped(folder: Path) -> None:
    made = decoder("avro", json.dumps(READER), framing="confluent", registry=str(folder))
    value = {"net": 100, "gross": 119}
    rows = made.decode([framed(1, OLD, value), framed(2, SWAPPED, value)])
    assert [row.value for row in rows] == [{**value, "currency": "EUR"}] * 2


def test_an_unknown_id_makes_a_row_bad(folder: Path) -> None:
    made = decoder("avro", json.dumps(READER), framing="confluent", registry=str(folder))
    bad, good = made.decode(
        [framed(9, OLD, {"net": 1, "gross": 2}), framed(1, OLD, {"net": 1, "gross": 2})]
    )
    assert bad.error == "unknown schema id 9"
    assert good.error is None


@pytest.mark.parametrize(
    ("written", "value", "reason"),
    [
        (record(("net", "long")), {"net": 1}, "incompatible schema"),
        (
            record(("net", "string"), ("gross", "long")),
            {"net": "1", "gross": 2},
            "incompatible schema",
        ),
        (
            record(("net", {"type": "long", "logicalType": "timestamp-millis"}), ("gross", "long")),
            {"net": 1, "gross": 2},
            "net is timestamp, not none",
        ),
    ],
)
def test_a_schema_that_does_not_fit_makes_its_rows_bad(
    tmp_path: Path, written: dict[str, Any], value: dict[str, Any], reason: str
) -> None:
    (tmp_path / "1.avsc").write_text(json.dumps(written))
    made = decoder("avro", json.dumps(READER), framing="confluent", registry=str(tmp_path))
    (row,) = made.decode([framed(1, written, value)])
    assert reason in (row.error or "")


def test_a_header_without_a_registry_is_refused_at_once() -> None:
    for kind, schema in (("avro", json.dumps(READER)), ("json", ID)):
        with pytest.raises(InvalidArgumentError, match="needs a schema registry") as refused:
            decoder(kind, schema, framing="confluent")
        assert "--registry" in refused.value.hint


def test_a_registry_without_a_header_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="needs the framing confluent"):
        decoder("json", ID, registry=str(folder))


def test_a_folder_without_schemas_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InvalidArgumentError) as refused:
            registry_at(str(place))
        assert "--registry" in refused.value.hint
    with pytest.raises(InvalidArgumentError, match="option a needs"):
        registry_at(str(tmp_path), {"a": "b"})


def test_schemas_are_asked_for_once_and_with_those_that_they_name(served: Served) -> None:
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}
    order = record(("price", "Money"))
    served.schemas["/schemas/ids/3"] = {
        "schema": json.dumps(order),
        "references": [{"name": "Money", "subject": "money", "version": 2}],
    }
    served.schemas["/subjects/money/versions/2"] = {
        "subject": "money",
        "version": 2,
        "id": 8,
        "schema": json.dumps(money),
    }
    whole = record(("price", money))
    made = decoder("avro", json.dumps(whole), framing="confluent", registry=served.url)
    value = {"price": {"cents": 5}}
    rows = made.decode([framed(3, whole, value)] * 10)
    assert [row.value for row in rows] == [value] * 10
    assert len(served.asked) == 2
    unknown = made.decode([framed(4, whole, value)] * 10)
    assert {row.error for row in unknown} == {"unknown schema id 4"}
    assert len(served.asked) == 3


def test_a_registry_that_fails_makes_no_row_bad(served: Served) -> None:
    made = decoder("json", ID, framing="confluent", registry=served.url)
    served.status = 403
    with pytest.raises(RegistryError, match="failed") as failed:
        made.decode([b'\0\0\0\0\1{"id": 1}'])
    assert "--registry" in failed.value.hint
    served.status = 200
    served.schemas["/schemas/ids/1"] = {"schema": "{}", "schemaType": "JSON"}
    (row,) = made.decode([b'\0\0\0\0\1{"id": 1}'])
    assert row.value == {"id": 1}


def test_a_registry_that_is_down_makes_no_row_bad() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        url = f"http://127.0.0.1:{closed.server_address[1]}"
    made = decoder("json", ID, framing="confluent", registry=url)
    with pytest.raises(RegistryError, match="failed"):
        made.decode([b'\0\0\0\0\1{"id": 1}'])


def test_a_protobuf_message_is_known_by_the_file_that_it_was_written_with(served: Served) -> None:
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    for name in ("Other", "Order"):
        message = file.message_type.add(name=name)
        message.field.add(
            name="id",
            number=1,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
            label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        )
    known = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    # In the file of the writer, Order came first.
    first, second = file.message_type
    file.ClearField("message_type")
    file.message_type.extend([second, first])
    served.schemas["/schemas/ids/1"] = {
        "schema": base64.b64encode(file.SerializeToString()).decode(),
        "schemaType": "PROTOBUF",
    }
    made = decoder(
        "protobuf", known, message="shop.Order", framing="confluent", registry=served.url
    )
    good, other = made.decode([b"\0\0\0\0\1\0\x08\x05", b"\0\0\0\0\1\2\2\x08\x05"])
    assert good.value == {"id": 5}
    assert other.error == "message type is shop.Other, not shop.Order"
    assert "format=serialized" in served.asked[0]
