"""Every operation of the OpenAPI document against a real broker, with data that fits and that does
not: no defect, and never an answer that the document does not promise.

The examples are the same in every run. To look for others: MOLDAU_HTTP_EXAMPLES=500.
"""

import os

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, openapi
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from http_client import ask
from moldau.edge.http.openapi import OPERATIONS, document
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

EXAMPLES = int(os.environ.get("MOLDAU_HTTP_EXAMPLES", "10"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SCHEMA = openapi.from_dict(document())
CHANGES = ("/configs", "/partitions", "/trim", "/elect", "/replicas")
"""Of a topic: its records may be gone then."""
JOIN = ("POST", "/api/v1/cluster/join")
CASES = [
    pytest.param(method, path, mode, id=f"{method} {path} {mode.value}")
    # Brokers that join and do not exist would be in the way of all that follows.
    for method, path in sorted(OPERATIONS, key=lambda operation: operation == JOIN)
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    # Where nothing is asked for but a name, nothing can be wrong.
    if mode is GenerationMode.POSITIVE
    or OPERATIONS[method, path].body is not None
    or OPERATIONS[method, path].query
    or "{broker}" in path
]


@pytest.fixture(scope="module")
def address():
    with Broker() as broker:
        body = {"records": [{"key": "k", "value": "v", "headers": [["h", "x"]]}] * 3}
        for name in ("there", "changing"):
            reply = ask(broker.http_address, "POST", "/api/v1/topics", {"name": name})
            assert reply.status == 201
            path = f"/api/v1/topics/{name}/records"
            assert ask(broker.http_address, "POST", path, body).status == 200
        yield broker.http_address


def aim(case, path: str, mode: GenerationMode) -> None:
    """Random names exist hardly ever: ask about what is there."""
    if "topic" in (case.path_parameters or {}):
        case.path_parameters["topic"] = "changing" if path.endswith(CHANGES) else "there"
    # What is wrong with the others may be just this number.
    if "broker" in (case.path_parameters or {}) and mode is GenerationMode.POSITIVE:
        case.path_parameters["broker"] = 1


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_no_response_is_an_internal_error_or_another_than_documented(address, method, path, mode):
    operation = SCHEMA[path][method]
    deletes = method == "DELETE"
    streams = path.endswith(("/tail", "/live", "/stream"))
    checks = list(CHECKS)
    if mode is GenerationMode.NEGATIVE:
        checks.append(negative_data_rejection)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), is_there=st.booleans())
    def run(case, is_there):
        if is_there and not deletes:
            aim(case, path, mode)
        if (method, path) == JOIN and isinstance(case.body, dict):
            # With another the answer is to try again, which is a 503.
            case.body["challenge"] = ask(address, "GET", f"{path}/challenge").body["challenge"]
        asked = case.as_transport_kwargs(base_url=f"http://{address}")
        with requests.request(
            **asked, timeout=wait_seconds_max(), allow_redirects=False, stream=True
        ) as response:
            if streams and response.status_code == 200:
                assert response.headers["content-type"].startswith("text/event-stream")
                return
            case.validate_response(response, checks=checks)

    run()


def test_every_operation_is_asked():
    known = {
        (operation.ok().method.upper(), operation.ok().path)  # type: ignore[union-attr]
        for operation in SCHEMA.get_all_operations()
    }
    assert known == set(OPERATIONS)


def test_the_broker_serves_as_before(address):
    assert ask(address, "GET", "/healthz").status == 200
    shown = ask(address, "GET", "/api/v1/topics/there/records?limit=3")
    assert [record["value"] for record in shown.body["records"]] == ["v"] * 3
