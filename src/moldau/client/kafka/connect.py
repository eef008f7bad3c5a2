"""Owns the first contact with a cluster, and the translation of librdkafka's errors into ours.

librdkafka goes on trying for as long as it is asked to, and says in the end only that it failed. A
plain connection before it tells at once what is wrong: refused, no such host, no answer.
"""

import socket
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from moldau.client.addresses import split_brokers
from moldau.client.errors import (
    START_HINT,
    ClientError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnreachableError,
)
from moldau.client.kafka.librdkafka_settings import REQUEST_SECONDS_MAX, Settings, admin_settings

_PROBE_SECONDS_MAX = 3.0

_NOT_TAKEN_HINT = (
    "disk full, or fewer replicas than min.insync.replicas? see the broker's log and: moldau doctor"
)

_UNREACHABLE = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})
_TIMED_OUT = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_NOT_FOUND = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.GROUP_ID_NOT_FOUND,
    }
)

_HINTS = {
    KafkaError.MSG_SIZE_TOO_LARGE: "send smaller ones, or raise the topic's max.message.bytes",
    KafkaError.TOPIC_ALREADY_EXISTS: "to be content with it: exist_ok=True, or --if-not-exists",
    KafkaError._UNKNOWN_PARTITION: "how many there are: moldau topic describe NAME",
}


def probe(brokers: str, seconds_max: float = _PROBE_SECONDS_MAX) -> None:
    """Connect to one of the brokers and hang up. Raises UnreachableError with the reason."""
    reasons: list[str] = []
    for host, port in split_brokers(brokers):
        try:
            socket.create_connection((host, port), timeout=seconds_max).close()
        except TimeoutError:
            reasons.append(f"no answer within {seconds_max:g} s")
        except socket.gaierror:
            reasons.append("no such host")
        except OSError as error:
            reasons.append((error.strerror or str(error)).lower())
        else:
            return
    why = ", ".join(dict.fromkeys(reasons))
    raise UnreachableError(f"cannot reach {brokers} ({why})", hint=START_HINT)


def connect_admin(brokers: str, extra: Mapping[str, str] | None = None) -> AdminClient:
    """An administrative client for brokers that were reachable just now."""
    probe(brokers)
    try:
        return AdminClient(admin_settings(brokers, extra))
    except KafkaException as error:
        raise translate(error, brokers=brokers) from error


def connect_producer(settings: Settings, topic: str) -> tuple[Producer, Any]:
    """A producer that can send at once, and librdkafka's metadata of the topic."""
    doing = f"produce to {topic}"
    brokers = str(settings["bootstrap.servers"])
    try:
        producer = Producer(settings)
        # Ask twice. The first answer comes over the bootstrap connection, names the brokers, and
        # creates the topic where that is done on demand. librdkafka then hangs up to connect anew,
        # finds itself without a broker to get its producer id from, and looks again only after
        # 500 ms; or after an answer over the new connection, which is the second one here.
        producer.list_topics(topic, timeout=REQUEST_SECONDS_MAX)
        found = producer.list_topics(topic, timeout=REQUEST_SECONDS_MAX).topics[topic]
    except KafkaException as error:
        raise translate(error, brokers=brokers, doing=doing) from error
    # Others pass: a topic that is being created, a leader that is being elected.
    if found.error is not None and not found.error.retriable():
        raise translate(found.error, brokers=brokers, doing=doing)
    return producer, found


def translate(
    error: KafkaException | KafkaError, *, brokers: str = "", doing: str = "", hint: str = ""
) -> ClientError:
    """Our error for one of librdkafka's. `doing` says what was tried: "create topic orders"."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(cause, KafkaError):
        return ClientError(f"cannot {doing}: {cause}" if doing else str(cause), hint=hint)
    code, reason = cause.code(), _reason(cause)
    tried = f"cannot {doing}" if doing else "the request failed"
    if code in _UNREACHABLE:
        where = brokers or "the broker"
        return UnreachableError(
            f"cannot reach {where} ({reason})",
            hint=hint or "does a Kafka listener answer there? check it: moldau doctor",
        )
    if code == KafkaError._MSG_TIMED_OUT:
        # The broker may have answered each time that it cannot take it just now.
        message = f"{tried}: not acknowledged by {brokers or 'the broker'} in time"
        return TimedOutError(message, hint=hint or _NOT_TAKEN_HINT)
    if code in _TIMED_OUT:
        message = f"{tried}: no answer from {brokers or 'the broker'} in time"
        return TimedOutError(message, hint=hint or "look for trouble: moldau doctor")
    hint = hint or _HINTS.get(code, "")
    if code in _NOT_FOUND:
        return NotFoundError(f"{tried}: {reason}", hint=hint)
    if code > 0:
        # Those below 0 are librdkafka's own.
        return RejectedError(f"{tried}: {reason}", code, hint=hint)
    return ClientError(f"{tried}: {reason}", hint=hint)


def _reason(cause: KafkaError) -> str:
    """The error's text without librdkafka's remarks on where it was found."""
    text = str(cause.str()).removeprefix("Unable to produce message: ")
    for remark in ("Broker: ", "Local: "):
        text = text.replace(remark, "")
    return text or str(cause.name())


__all__ = [
    "REQUEST_SECONDS_MAX",
    "connect_admin",
    "connect_producer",
    "probe",
    "split_brokers",
    "translate",
]
