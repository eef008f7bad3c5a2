"""/api/v1/openapi.json: the OpenAPI 3.1 document.

The schemas are generated from the structs that are decoded and encoded. The paths and parameters
are listed here; a test compares them with the routes.

`python -m moldau.edge.http.openapi` prints the schemas alone: the web console's types are made of
them.
"""

import sys
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import moldau
from moldau.api.connections import ConnectionList
from moldau.api.raft_groups import RaftGroupList
from moldau.api.search.types import FOLLOWED_MAX
from moldau.api.types import INT_MAX, LONG_MAX
from moldau.edge.http.cluster import LeadersElected
from moldau.edge.http.event_streams import MEDIA_TYPE
from moldau.edge.http.group_operations import GROUP_OPERATIONS
from moldau.edge.http.login import LoginReply, LoginRequest
from moldau.edge.http.me import Me
from moldau.edge.http.message_json import VALUE_MAX, VALUE_MAX_MAX
from moldau.edge.http.operation import TEXT as _TEXT
from moldau.edge.http.operation import Operation, Schema
from moldau.edge.http.operation import number as _number
from moldau.edge.http.pipelines import PIPELINE_OPERATIONS
from moldau.edge.http.play import PLAY_OPERATIONS
from moldau.edge.http.produce import RecordsSent, RecordsStored, StoreProblem
from moldau.edge.http.query_parameters import PAGE_SIZE, PAGE_SIZE_MAX
from moldau.edge.http.queue_operations import QUEUE_OPERATIONS
from moldau.edge.http.records import FILTER_PARAMETERS, HEADERS_MAX, WAIT_MS_MAX, RecordsShown
from moldau.edge.http.report import IDLE_MS_MAX
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
from moldau.edge.http.responses import PROBLEM_TYPE, check_query, respond
from moldau.edge.http.search import JSON_TERMS_MAX, PARTITIONS_NAMED_MAX, SearchPage
from moldau.edge.http.topic_operations import TOPIC_OPERATIONS
from moldau.edge.http.topics import TopicWanted
from moldau.edge.http.transactions import TRANSACTION_OPERATIONS
from moldau.edge.http.visits import LOGIN_PATH
from moldau.model.backup import (
    ClusterCopy,
    ClusterToRestore,
    QueueGroupCopy,
    QueueStates,
    QueueToRestore,
    Restored,
    RestoredTo,
    StartToRestore,
)
from moldau.model.broker_report import IDLE_MS, BrokerReport
from moldau.model.overview import Overview
from moldau.model.prometheus_text import MEDIA_TYPE as METRICS_TYPE
from moldau.model.topology import (
    BrokerActionRequest,
    BrokerActionResponse,
    JoinChallenge,
    JoinTokenCreated,
    JoinTokenList,
    JoinTokenWanted,
    LogLevelList,
    LogLevelsWanted,
    ProvenJoinRequest,
    Readiness,
    RecoveryReply,
    RecoveryRequest,
    SealedJoinReply,
    TokenDeleted,
    Topology,
)

PATH: Final = "/api/v1/openapi.json"

_REFERENCE: Final = "#/components/schemas/{name}"
_ENCODING: Final[Schema] = {"enum": ["text", "json", "base64"], "default": "text"}


def _flag(words: str) -> Schema:
    return {"type": "boolean", "default": False, "description": words}


_LIMIT: Final = {"limit": _number(1, PAGE_SIZE_MAX, default=PAGE_SIZE)}
_PAGE_BY_NAME: Final = {**_LIMIT, "after": _TEXT}
_SEARCHED: Final = {
    **_PAGE_BY_NAME,
    "search": {**_TEXT, "description": "Only names that contain this, in capitals or not."},
}
_PAGE_BY_NUMBER: Final = {**_LIMIT, "after": _number(-1, INT_MAX)}
_RECORDS: Final[dict[str, Schema]] = {
    "partition": _number(0, INT_MAX),
    "offset": {
        "anyOf": [{"enum": ["earliest", "latest"]}, _number(0, LONG_MAX)],
        "description": "Cannot be combined with time.",
    },
    "time": _number(0, LONG_MAX, description="Milliseconds since 1970."),
    "key_encoding": _ENCODING,
    "value_encoding": _ENCODING,
    "header_encoding": {"enum": ["text", "base64"], "default": "text"},
    "key": {**_TEXT, "description": "Only records with this key."},
    "contains": {**_TEXT, "description": "Only records whose value contains this."},
    "header": {
        "type": "array",
        "items": _TEXT,
        "maxItems": HEADERS_MAX,
        "description": "Only records with this header: NAME or NAME:VALUE. All given must match.",
    },
}
_MESSAGES: Final[dict[str, Schema]] = {
    **{name: _RECORDS[name] for name in FILTER_PARAMETERS},
    "json": {
        "type": "array",
        "items": _TEXT,
        "maxItems": JSON_TERMS_MAX,
        "description": "Only JSON values with this: PATH=VALUE, or PATH alone if it exists.",
    },
    "partition": {
        "type": "array",
        "items": _number(0, INT_MAX),
        "maxItems": PARTITIONS_NAMED_MAX,
        "description": "By default all, of a topic with so few.",
    },
    "markers": {
        "type": "boolean",
        "default": False,
        "description": "Also show the markers that end transactions, if there is no filter.",
    },
    "value_max": _number(
        0, VALUE_MAX_MAX, default=VALUE_MAX, description="Bytes of each value and key."
    ),
}


OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/"): Operation(
        "root", "Name, version and all paths", {200: "application/json"}, {}, refusals=(303,)
    ),
    ("GET", "/healthz"): Operation("alive", "Liveness", {200: "application/json"}),
    ("GET", "/readyz"): Operation("ready", "Readiness", {200: Readiness, 503: Readiness}),
    ("GET", "/metrics"): Operation(
        "metrics",
        "Metrics for Prometheus",
        {200: METRICS_TYPE},
        {"detail": {"type": "string", "enum": ["partition"]}},
    ),
    ("GET", PATH): Operation("openapi", "This document", {200: "application/json"}, {}),
    ("POST", LOGIN_PATH): Operation(
        "login", "A bearer token for a password", {200: LoginReply}, {}, body=LoginRequest
    ),
    ("GET", "/api/v1/me"): Operation("me", "Who asks, and what they may do", {200: Me}, {}),
    ("GET", "/api/v1/topology"): Operation(
        "topology",
        "Brokers, topics and partition leaders",
        {200: Topology},
        {"topic": {"type": "array", "items": _TEXT}},
        refusals=(404,),
    ),
    ("GET", "/api/v1/overview"): Operation(
        "overview",
        "The whole cluster, live: health, brokers, rates, latency, lag, events and history",
        {200: Overview},
        {},
    ),
    ("GET", "/api/v1/overview/stream"): Operation(
        "followOverview",
        "The overview every 2 s, with Server-Sent Events; the first one with history",
        {200: MEDIA_TYPE},
        {},
    ),
    ("GET", "/api/v1/report"): Operation(
        "report",
        "What only this broker knows: version, clock, disk, files, certificates, idle groups",
        {200: BrokerReport},
        {"idle_ms": _number(0, IDLE_MS_MAX, default=IDLE_MS)},
    ),
    ("GET", "/api/v1/topics"): Operation(
        "listTopics",
        "Topics, in pages",
        {200: TopicList},
        {
            **_SEARCHED,
            "internal": _flag("Also topics of Moldau itself."),
            "stats": _flag("Also records, bytes, rates and retention."),
        },
    ),
    ("POST", "/api/v1/topics"): Operation(
        "createTopic",
        "Create a topic",
        {200: TopicShown, 201: TopicShown},
        {},
        body=TopicWanted,
        refusals=(409,),
    ),
    ("GET", "/api/v1/topics/{topic}"): Operation(
        "showTopic",
        "Describe a topic: settings and a page of its partitions",
        {200: TopicShown},
        _PAGE_BY_NUMBER,
        refusals=(404,),
    ),
    ("DELETE", "/api/v1/topics/{topic}"): Operation(
        "deleteTopic",
        "Delete a topic with all its records",
        {200: TopicDeleted},
        {},
        refusals=(404, 409),
    ),
    **TOPIC_OPERATIONS,
    **QUEUE_OPERATIONS,
    **TRANSACTION_OPERATIONS,
    **PIPELINE_OPERATIONS,
    **PLAY_OPERATIONS,
    ("GET", "/api/v1/topics/{topic}/records"): Operation(
        "readRecords",
        "Read a partition by offset or time",
        {200: RecordsShown},
        {**_RECORDS, **_LIMIT, "wait_ms": _number(0, WAIT_MS_MAX, default=0)},
        refusals=(404,),
    ),
    ("POST", "/api/v1/topics/{topic}/records"): Operation(
        "storeRecords",
        "Store records in any partitions of a topic",
        {200: RecordsStored},
        {},
        body=RecordsSent,
        refusals=(404,),
        problem=StoreProblem,
    ),
    ("GET", "/api/v1/topics/{topic}/search"): Operation(
        "searchMessages",
        "Find messages in all partitions of a topic, newest or oldest first",
        {200: SearchPage},
        {
            "direction": {"enum": ["newest", "oldest"], "default": "newest"},
            "offset": _number(0, LONG_MAX - 1, description="In each partition, where to begin."),
            "time": _number(
                0, LONG_MAX - 1, description="Where to begin, in milliseconds since 1970."
            ),
            **_MESSAGES,
            **_LIMIT,
            "cursor": {**_TEXT, "description": "Of the page before; with the same filters."},
        },
        refusals=(404,),
    ),
    ("GET", "/api/v1/topics/{topic}/tail"): Operation(
        "followRecords",
        "Follow a partition with Server-Sent Events",
        {200: MEDIA_TYPE},
        _RECORDS,
        refusals=(404,),
    ),
    ("GET", "/api/v1/topics/{topic}/live"): Operation(
        "watchMessages",
        "New messages of all partitions with Server-Sent Events; in bursts some are skipped",
        {200: MEDIA_TYPE},
        {
            **_MESSAGES,
            "partition": {
                **_MESSAGES["partition"],
                "description": "By default all, of a topic with so few. All views of a broker "
                f"follow {FOLLOWED_MAX} partitions at most, together.",
            },
        },
        refusals=(404,),
    ),
    ("GET", "/api/v1/brokers"): Operation(
        "listBrokers", "Brokers, in pages", {200: BrokerList}, _PAGE_BY_NUMBER
    ),
    ("GET", "/api/v1/brokers/{broker}"): Operation(
        "showBroker", "Describe a broker and its settings", {200: BrokerShown}, {}, refusals=(404,)
    ),
    ("GET", "/api/v1/brokers/{broker}/connections"): Operation(
        "listConnections",
        "The clients of a broker, by connection",
        {200: ConnectionList},
        {},
        refusals=(404,),
    ),
    ("GET", "/api/v1/brokers/{broker}/log-levels"): Operation(
        "showLogLevels",
        "The levels of a broker's log, by component",
        {200: LogLevelList},
        {},
        refusals=(404,),
    ),
    ("POST", "/api/v1/brokers/{broker}/log-levels"): Operation(
        "setLogLevels",
        "Set levels of a broker's log until its process ends; null: as configured",
        {200: LogLevelList},
        {},
        body=LogLevelsWanted,
        refusals=(404,),
    ),
    ("GET", "/api/v1/raft"): Operation(
        "listRaftGroups",
        "Raft groups of the cluster, in pages: leaders, members and their lag, recent events",
        {200: RaftGroupList},
        {
            "search": {**_TEXT, "description": "Only groups with this in their name."},
            **_LIMIT,
            "after": {"type": "string", "pattern": "^metadata$|./[0-9]{1,10}$"},
        },
    ),
    ("GET", "/api/v1/groups"): Operation(
        "listGroups",
        "Consumer groups of the cluster, in pages",
        {200: GroupList},
        {**_SEARCHED, "lag": _flag("Also how far each group is behind.")},
    ),
    ("GET", "/api/v1/groups/{group}"): Operation(
        "showGroup",
        "Describe a group: members, committed offsets and lag",
        {200: GroupShown},
        {**_LIMIT, "after": {"type": "string", "pattern": "/-?[0-9]{1,19}$"}},
        refusals=(404,),
    ),
    **GROUP_OPERATIONS,
    ("GET", "/api/v1/queues"): Operation(
        "listQueues",
        "Queue groups of the cluster, in pages",
        {200: QueueList},
        {**_SEARCHED, "topic": _TEXT, "counts": _flag("Also what is in them.")},
    ),
    ("GET", "/api/v1/cluster/join/challenge"): Operation(
        "joinChallenge", "For brokers: what to prove to join", {200: JoinChallenge}, {}
    ),
    ("POST", "/api/v1/cluster/join"): Operation(
        "join",
        "For brokers: join the cluster, or return to it",
        {200: SealedJoinReply},
        {},
        body=ProvenJoinRequest,
        refusals=(409,),
    ),
    ("POST", "/api/v1/cluster/tokens"): Operation(
        "createJoinToken",
        "Create a token that one broker can join with",
        {201: JoinTokenCreated},
        {},
        body=JoinTokenWanted,
    ),
    ("GET", "/api/v1/cluster/tokens"): Operation(
        "listJoinTokens", "Tokens to join with, without their secrets", {200: JoinTokenList}, {}
    ),
    ("DELETE", "/api/v1/cluster/tokens/{token}"): Operation(
        "deleteJoinToken",
        "Delete a token: no broker can join with it any more",
        {200: TokenDeleted},
        {},
        refusals=(404,),
    ),
    ("POST", "/api/v1/cluster/leave"): Operation(
        "leave",
        "Drain a broker and remove it from the cluster",
        {202: BrokerActionResponse},
        {},
        body=BrokerActionRequest,
        refusals=(404, 409),
    ),
    ("POST", "/api/v1/cluster/keep"): Operation(
        "keep",
        "Cancel the draining of a broker",
        {200: BrokerActionResponse},
        {},
        body=BrokerActionRequest,
        refusals=(404, 409),
    ),
    ("POST", "/api/v1/cluster/elect"): Operation(
        "electAllLeaders",
        "Let the preferred replica of every partition lead",
        {200: LeadersElected},
        {},
    ),
    ("POST", "/api/v1/cluster/recover"): Operation(
        "recover",
        "Let partitions go on that lost a majority of their replicas; removes the lost brokers",
        {200: RecoveryReply},
        {},
        body=RecoveryRequest,
        refusals=(404, 409),
    ),
    ("GET", "/api/v1/backup/cluster"): Operation(
        "backupCluster",
        "For moldau backup: topics, queue groups, users, ACLs and quotas",
        {200: ClusterCopy},
        {},
    ),
    ("GET", "/api/v1/backup/queues/{group}/{topic}"): Operation(
        "backupQueue",
        "For moldau backup: the state of a queue",
        {200: QueueStates},
        {},
        refusals=(404,),
    ),
    ("POST", "/api/v1/restore/topics/{topic}/{partition}"): Operation(
        "restoreBatches",
        "For moldau backup: append stored batches (application/octet-stream) to a partition of a "
        "topic that is being restored",
        {200: RestoredTo},
        {"offset": _number(0, LONG_MAX, description="Of the first batch.")},
        refusals=(404, 413, 415),
    ),
    ("POST", "/api/v1/restore/starts"): Operation(
        "restoreStart",
        "For moldau backup: move the start of a partition that is being restored",
        {200: RestoredTo},
        {},
        body=StartToRestore,
        refusals=(404,),
    ),
    ("POST", "/api/v1/restore/cluster"): Operation(
        "restoreCluster",
        "For moldau backup: add users, ACLs and quotas, and skip producer ids",
        {200: Restored},
        {},
        body=ClusterToRestore,
    ),
    ("POST", "/api/v1/restore/queues"): Operation(
        "restoreQueue",
        "For moldau backup: store the state of a queue on one partition",
        {200: Restored},
        {},
        body=QueueToRestore,
        refusals=(404, 409),
    ),
    ("POST", "/api/v1/restore/queue-groups"): Operation(
        "restoreQueueGroup",
        "For moldau backup: define a queue group",
        {200: Restored},
        {},
        body=QueueGroupCopy,
        refusals=(404,),
    ),
}

_REASONS: Final = {
    303: "For a browser: the web console",
    400: "Invalid body, parameter or value",
    401: "The broker does not know who asks",
    403: "The client has no right to do this, or is a web page of another origin",
    404: "Not found",
    409: "In conflict with the current state",
    413: "The body is too large",
    415: "The Content-Type is not JSON",
    421: "Sent to a host name that the broker does not have",
    429: "The client is over its quota: retry after Retry-After",
    500: "Internal error of the broker",
    503: "Temporarily unavailable: retry",
}


def document() -> Schema:
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
        paths.setdefault(path, {})[method.lower()] = _describe(path, operation, schemas)
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


def schemas_alone() -> Schema:
    return {**document(), "paths": {}}


def _describe(path: str, operation: Operation, schemas: dict[type, Schema]) -> Schema:
    described: Schema = {"operationId": operation.name, "summary": operation.summary}
    parameters: list[Schema] = [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in (operation.query or {}).items()
    ]
    for part in path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            schema = _number(0, INT_MAX) if name in ("broker", "partition") else _TEXT
            parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        content = {"application/json": {"schema": schemas[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    answers: Schema = {}
    for status, shape in operation.answers.items():
        words = {200: "OK", 201: "Created", 202: "Accepted; continues in the background"}
        content = (
            {shape: {}}
            if isinstance(shape, str)
            else {"application/json": {"schema": schemas[shape]}}
        )
        answers[str(status)] = {
            "description": words.get(status, _REASONS.get(status, "")),
            "content": content,
        }
    for status in _refusals(operation):
        answers[str(status)] = {"description": _REASONS[status]}
        if status >= 400:
            problem = {"schema": schemas[operation.problem]}
            answers[str(status)]["content"] = {PROBLEM_TYPE: problem}
    described["responses"] = answers
    return described


def _refusals(operation: Operation) -> list[int]:
    # 503 is possible everywhere: the memory limit for bodies and replies.
    # 401, 403 and 421: by nobody, by a web page of another origin, or to another host.
    # 429: above the quota for the time of requests.
    general = [401, 403, 421, 429, 500, 503]
    if operation.query is not None or operation.body is not None:
        general.append(400)
    if operation.body is not None:
        general += [413, 415]
    return sorted({*general, *operation.refusals} - operation.answers.keys())


def routes() -> list[Route]:
    cached: list[Response] = []

    async def openapi(request: Request) -> Response:
        check_query(request)
        if not cached:
            cached.append(respond(document()))
        return cached[0]

    return [Route(PATH, openapi, methods=["GET"])]


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(schemas_alone())) + b"\n")
