"""Owns /api/v1/openapi.json: the interface as tools read it (OpenAPI 3.1).

The shapes come from the structs that are read and written, so they cannot differ from them. What
the paths are, and what may follow them, is written down here; a test compares it with the routes.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import moldau
from moldau.edge.http import tail
from moldau.edge.http.produce import RecordsSent, RecordsStored, StoreProblem
from moldau.edge.http.query_parameters import PAGE_SIZE, PAGE_SIZE_MAX
from moldau.edge.http.records import HEADERS_MAX, WAIT_MS_MAX, RecordsShown
from moldau.edge.http.resources import (
    BrokerList,
    BrokerShown,
    GroupList,
    GroupShown,
    QueueList,
    TopicDeleted,
    TopicList,
    TopicShown,
)
from moldau.edge.http.responses import PROBLEM_TYPE, answer, check_query
from moldau.edge.http.topics import TopicWanted
from moldau.metadata.config_types import INT_MAX, LONG_MAX
from moldau.model.prometheus_text import MEDIA_TYPE as METRICS_TYPE
from moldau.model.topology import (
    BrokerActionRequest,
    BrokerActionResponse,
    ErrorReply,
    JoinReply,
    JoinRequest,
    Readiness,
    Topology,
)

PATH: Final = "/api/v1/openapi.json"

Schema = dict[str, Any]

_REFERENCE: Final = "#/components/schemas/{name}"
_TEXT: Final[Schema] = {"type": "string"}
_ENCODING: Final[Schema] = {"enum": ["text", "json", "base64"], "default": "text"}


def _number(least: int, most: int, **more: Any) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, **more}


_LIMIT: Final = {"limit": _number(1, PAGE_SIZE_MAX, default=PAGE_SIZE)}
_PAGE_BY_NAME: Final = {**_LIMIT, "after": _TEXT}
_PAGE_BY_NUMBER: Final = {**_LIMIT, "after": _number(-1, INT_MAX)}
_RECORDS: Final[dict[str, Schema]] = {
    "partition": _number(0, INT_MAX),
    "offset": {
        "anyOf": [{"enum": ["earliest", "latest"]}, _number(0, LONG_MAX)],
        "description": "Not together with time.",
    },
    "time": _number(0, LONG_MAX, description="Milliseconds since 1970."),
    "key_encoding": _ENCODING,
    "value_encoding": _ENCODING,
    "header_encoding": {"enum": ["text", "base64"], "default": "text"},
    "key": {**_TEXT, "description": "Only records with this key."},
    "contains": {**_TEXT, "description": "Only records with this in their value."},
    "header": {
        "type": "array",
        "items": _TEXT,
        "maxItems": HEADERS_MAX,
        "description": "Only records with a header of this name, or with NAME:VALUE; all of them, "
        "if several are given.",
    },
}


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path. `answers`: by status; a string is a media type without a schema."""

    name: str
    summary: str
    answers: dict[int, type | str]
    query: dict[str, Schema] | None = None
    """None: unknown parameters are ignored here."""
    body: type | None = None
    refusals: tuple[int, ...] = ()
    problem: type = ErrorReply


OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/"): Operation(
        name="root", summary="What there is", answers={200: "application/json"}, query={}
    ),
    ("GET", "/healthz"): Operation(
        name="alive", summary="The process serves", answers={200: "application/json"}
    ),
    ("GET", "/readyz"): Operation(
        name="ready", summary="Clients are served", answers={200: Readiness, 503: Readiness}
    ),
    ("GET", "/metrics"): Operation(
        name="metrics", summary="For Prometheus", answers={200: METRICS_TYPE}
    ),
    ("GET", PATH): Operation(
        name="openapi", summary="This document", answers={200: "application/json"}, query={}
    ),
    ("GET", "/api/v1/topology"): Operation(
        name="topology",
        summary="Brokers, topics, and who leads what",
        answers={200: Topology},
        query={"topic": {"type": "array", "items": _TEXT}},
        refusals=(404,),
    ),
    ("GET", "/api/v1/topics"): Operation(
        name="listTopics",
        summary="Topics, in pages",
        answers={200: TopicList},
        query={**_PAGE_BY_NAME, "internal": {"type": "boolean", "default": False}},
    ),
    ("POST", "/api/v1/topics"): Operation(
        name="createTopic",
        summary="Create a topic",
        answers={200: TopicShown, 201: TopicShown},
        query={},
        body=TopicWanted,
        refusals=(409,),
    ),
    ("GET", "/api/v1/topics/{topic}"): Operation(
        name="showTopic",
        summary="One topic with settings and a page of its partitions",
        answers={200: TopicShown},
        query=_PAGE_BY_NUMBER,
        refusals=(404,),
    ),
    ("DELETE", "/api/v1/topics/{topic}"): Operation(
        name="deleteTopic",
        summary="Delete a topic with all its records",
        answers={200: TopicDeleted},
        query={},
        refusals=(404, 409),
    ),
    ("GET", "/api/v1/topics/{topic}/records"): Operation(
        name="readRecords",
        summary="Read a partition by offset or time",
        answers={200: RecordsShown},
        query={**_RECORDS, **_LIMIT, "wait_ms": _number(0, WAIT_MS_MAX, default=0)},
        refusals=(307, 404),
    ),
    ("POST", "/api/v1/topics/{topic}/records"): Operation(
        name="storeRecords",
        summary="Store records in any partitions of a topic",
        answers={200: RecordsStored},
        query={},
        body=RecordsSent,
        refusals=(404,),
        problem=StoreProblem,
    ),
    ("GET", "/api/v1/topics/{topic}/tail"): Operation(
        name="followRecords",
        summary="Records of a partition as they come, by Server-Sent Events",
        answers={200: tail.MEDIA_TYPE},
        query=_RECORDS,
        refusals=(307, 404),
    ),
    ("GET", "/api/v1/brokers"): Operation(
        name="listBrokers",
        summary="Brokers, in pages",
        answers={200: BrokerList},
        query=_PAGE_BY_NUMBER,
    ),
    ("GET", "/api/v1/brokers/{broker}"): Operation(
        name="showBroker",
        summary="One broker with its settings",
        answers={200: BrokerShown},
        query={},
        refusals=(404,),
    ),
    ("GET", "/api/v1/groups"): Operation(
        name="listGroups",
        summary="Consumer groups of the cluster, in pages",
        answers={200: GroupList},
        query=_PAGE_BY_NAME,
    ),
    ("GET", "/api/v1/groups/{group}"): Operation(
        name="showGroup",
        summary="One group with members, positions and lag",
        answers={200: GroupShown},
        query={**_LIMIT, "after": {"type": "string", "pattern": "/-?[0-9]{1,19}$"}},
        refusals=(307, 404),
    ),
    ("GET", "/api/v1/queues"): Operation(
        name="listQueues",
        summary="Queue groups of the cluster, in pages",
        answers={200: QueueList},
        query={**_PAGE_BY_NAME, "topic": _TEXT},
    ),
    ("POST", "/api/v1/cluster/join"): Operation(
        name="join",
        summary="Take a broker into the cluster",
        answers={200: JoinReply},
        query={},
        body=JoinRequest,
        refusals=(409,),
    ),
    ("POST", "/api/v1/cluster/leave"): Operation(
        name="leave",
        summary="Drain a broker, which then leaves",
        answers={202: BrokerActionResponse},
        query={},
        body=BrokerActionRequest,
        refusals=(404, 409),
    ),
    ("POST", "/api/v1/cluster/keep"): Operation(
        name="keep",
        summary="Take a leave back",
        answers={200: BrokerActionResponse},
        query={},
        body=BrokerActionRequest,
        refusals=(404, 409),
    ),
}

_REASONS: Final = {
    307: "Another broker answers this: its address is in Location",
    400: "The body, a parameter, or what was asked for does not fit",
    403: "A web page of this origin may not do that",
    404: "There is no such thing",
    409: "In conflict with what is there",
    413: "The body is too large",
    415: "The body does not say that it is JSON",
    500: "A defect of the broker",
    503: "Not just now: try again",
}


def document() -> Schema:
    """The whole of it."""
    structs = {
        shape
        for operation in OPERATIONS.values()
        for shape in (operation.body, operation.problem, *operation.answers.values())
        if isinstance(shape, type)
    }
    ordered = sorted(structs, key=lambda shape: shape.__name__)
    references, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    schemas = dict(zip(ordered, references, strict=True))
    paths: dict[str, Schema] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _describe(method, path, operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Moldau",
            "version": moldau.__version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _describe(method: str, path: str, operation: Operation, schemas: dict[type, Schema]) -> Schema:
    described: Schema = {"operationId": operation.name, "summary": operation.summary}
    parameters: list[Schema] = [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in (operation.query or {}).items()
    ]
    for part in path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            schema = _number(0, INT_MAX) if name == "broker" else _TEXT
            parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        content = {"application/json": {"schema": schemas[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    answers: Schema = {}
    for status, shape in operation.answers.items():
        words = {200: "As asked", 201: "Created", 202: "Accepted, and going on"}
        content = (
            {shape: {}}
            if isinstance(shape, str)
            else {"application/json": {"schema": schemas[shape]}}
        )
        answers[str(status)] = {
            "description": words.get(status, _REASONS.get(status, "")),
            "content": content,
        }
    for status in _refusals(method, operation):
        answers[str(status)] = {"description": _REASONS[status]}
        if status != 307:
            problem = {"schema": schemas[operation.problem]}
            answers[str(status)]["content"] = {PROBLEM_TYPE: problem}
    described["responses"] = answers
    return described


def _refusals(method: str, operation: Operation) -> list[int]:
    # 503 also where nothing is to be waited for: when too much is on its way already.
    general = [500, 503]
    if operation.query is not None or operation.body is not None:
        general.append(400)
    if operation.body is not None:
        general += [413, 415]
    if method != "GET":
        general.append(403)
    return sorted({*general, *operation.refusals} - operation.answers.keys())


def routes() -> list[Route]:
    told: list[Response] = []

    async def openapi(request: Request) -> Response:
        check_query(request)
        if not told:
            told.append(answer(document()))
        return told[0]

    return [Route(PATH, openapi, methods=["GET"])]
