"""The OpenAPI document: valid, complete, and kept by what a real broker answers."""

from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from http_client import ask
from moldau.edge.http import reference
from moldau.edge.http.openapi import document

pytestmark = pytest.mark.system

SPEC = msgspec.json.decode(msgspec.json.encode(document()))


def answer_schema(method: str, path: str, status: int) -> Draft202012Validator:
    answer = SPEC["paths"][path][method.lower()]["responses"][str(status)]
    ((_, content),) = answer["content"].items()
    return Draft202012Validator({**content["schema"], "components": SPEC["components"]})


def test_the_document_is_valid():
    validate(SPEC)


def test_the_reference_is_what_the_document_says():
    page = (Path(__file__).parents[3] / reference.PAGE).read_text()
    assert page == reference.render(), "run: make docs"


def test_every_operation_has_a_name_of_its_own():
    names = [one["operationId"] for path in SPEC["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names)


def test_a_broker_returns_it_and_it_names_every_route(moldau_session_broker):
    address = moldau_session_broker.http_address
    reply = ask(address, "GET", "/api/v1/openapi.json")
    assert (reply.status, reply.body) == (200, SPEC)
    told = {
        f"{method.upper()} {path}" for path, methods in SPEC["paths"].items() for method in methods
    }
    assert told == {"GET /", *ask(address, "GET", "/").body["links"]}


def test_every_parameter_that_is_documented_is_known(moldau_session_broker, moldau_topic):
    """With a value that no parameter allows: the refusal names the parameter, and knows it."""
    address = moldau_session_broker.http_address
    for path, methods in SPEC["paths"].items():
        for parameter in methods.get("get", {}).get("parameters", ()):
            schema = parameter["schema"]
            takes_any_text = "string" in (schema.get("type"), schema.get("items", {}).get("type"))
            if parameter["in"] != "query" or takes_any_text:
                continue
            where = path.format(topic=moldau_topic, broker=1, group="g")
            reply = ask(address, "GET", f"{where}?{parameter['name']}=%00")
            assert reply.status in (400, 404), (path, parameter)
            assert "Unknown query parameter" not in reply.body["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/readyz", None, 200),
        ("GET", "/api/v1/topology", None, 200),
        ("GET", "/api/v1/topics", None, 200),
        ("GET", "/api/v1/topics?limit=0", None, 400),
        ("GET", "/api/v1/topics/{topic}", None, 200),
        ("GET", "/api/v1/topics/{topic}?after=x", None, 400),
        ("POST", "/api/v1/topics/{topic}/records", {"records": [{"value": "x"}]}, 200),
        ("POST", "/api/v1/topics/{topic}/records", {"records": []}, 400),
        ("POST", "/api/v1/topics/{topic}/records", {"records": [{"value": "x" * 2**21}]}, 400),
        ("POST", "/api/v1/topics/{topic}/records", {"records": [{"value": "x" * 2**22}]}, 413),
        ("GET", "/api/v1/topics/{topic}/records", None, 200),
        ("GET", "/api/v1/topics/{topic}/records?partition=5", None, 404),
        ("POST", "/api/v1/topics", {"name": "{topic}-more"}, 201),
        ("POST", "/api/v1/topics", {"name": "{topic}"}, 409),
        ("GET", "/api/v1/topic-settings", None, 200),
        ("PATCH", "/api/v1/topics/{topic}/configs", {"configs": {"segment.ms": "70000"}}, 200),
        ("POST", "/api/v1/topics/{topic}/partitions", {"count": 99}, 200),
        ("POST", "/api/v1/topics/{topic}/partitions", {"count": 1}, 400),
        ("POST", "/api/v1/topics/{topic}/trim", {"partitions": {"0": None}}, 200),
        ("POST", "/api/v1/topics/{topic}/trim", {"partitions": {"0": 2**60}}, 400),
        ("GET", "/api/v1/topics/{topic}/groups", None, 200),
        ("POST", "/api/v1/topics/{topic}/elect", {"partitions": [0]}, 200),
        ("POST", "/api/v1/topics/{topic}/replicas", {"partitions": {"0": [1]}}, 200),
        ("POST", "/api/v1/topics/{topic}/replicas", {"partitions": {"0": None}}, 409),
        ("GET", "/api/v1/brokers", None, 200),
        ("GET", "/api/v1/brokers/1", None, 200),
        ("GET", "/api/v1/groups", None, 200),
        ("GET", "/api/v1/groups/nobody", None, 404),
        ("DELETE", "/api/v1/groups/nobody", None, 404),
        ("POST", "/api/v1/groups/nobody/reset", {"topic": "t", "to": "latest"}, 404),
        ("POST", "/api/v1/cluster/elect", None, 200),
        ("POST", "/api/v1/cluster/leave", {"broker": 77}, 404),
        ("DELETE", "/api/v1/topics/no-such-topic", None, 404),
    ],
    ids=str,
)
def test_answers_have_the_shape_that_is_promised(
    moldau_session_broker, moldau_topic, method, path, body, status
):
    address = moldau_session_broker.http_address
    if body is not None and "name" in body:
        body = {"name": body["name"].format(topic=moldau_topic)}
    reply = ask(address, method, path.format(topic=moldau_topic), body)
    assert reply.status == status, reply.body
    plain = path.partition("?")[0]
    plain = plain.replace("/brokers/1", "/brokers/{broker}").replace("nobody", "{group}")
    plain = plain.replace("no-such-topic", "{topic}")
    answer_schema(method, plain, status).validate(reply.body)


def test_a_shape_that_is_not_promised_would_be_noticed():
    assert not answer_schema("GET", "/api/v1/topics", 200).is_valid({"topics": [{"name": 1}]})
