"""Owns the way to another broker: what only that one can answer is asked there by the client.

The answer is 307, which keeps method and body; `curl -L` and every library follow it by themselves.
"""

from starlette.requests import Request
from starlette.responses import Response

from moldau.edge.http.answers import answer
from moldau.metadata.image import Topic
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.service.broker import Broker


def send_to(broker: Broker, other: int, request: Request) -> Response:
    """To the same address on that broker. Raises RefusedError if it has none."""
    known = broker.image.brokers.get(BrokerId(other))
    if known is None or known.http is None:
        raise RefusedError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {other} is to be asked, and not to be found"
        )
    host = f"[{known.http.host}]" if ":" in known.http.host else known.http.host
    # As it came: what the client has quoted stays quoted.
    path = request.scope.get("raw_path", b"").decode("ascii", "replace") or request.scope["path"]
    query = request.scope["query_string"].decode("ascii", "replace")
    target = f"http://{host}:{known.http.port}{path}" + (f"?{query}" if query else "")
    return answer({"broker": other, "location": target}, 307, {"location": target})


def find_topic(broker: Broker, name: str) -> Topic:
    """Raises RefusedError."""
    topic = broker.image.topic(name)
    if topic is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist")
    return topic


def leader_elsewhere(broker: Broker, topic: Topic, partition: int) -> int | None:
    """The broker that leads the partition, None if it is this one. Raises RefusedError."""
    if not 0 <= partition < len(topic.partitions):
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Topic '{topic.name}' has no partition {partition}; it has {len(topic.partitions)}",
        )
    leader = broker.cluster.leader_of(topic, partition).broker
    if leader == NO_LEADER_ID:
        raise RefusedError(
            ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{partition} has no leader now"
        )
    return None if leader == broker.broker_id else int(leader)
