"""Connects to a cluster, and translates librdkafka's errors to ours.

librdkafka retries until its deadline, and then only says that it failed. A plain TCP connection
first finds the cause at once: connection refused, no such host, timed out.
"""

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from moldau.client.addresses import split_brokers
from moldau.client.errors import (
    KAFKA_PORT_HINT,
    SECURITY_HINT,
    START_HINT,
    TOPIC_EXISTS_HINT,
    ClientError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnreachableError,
    login_hint,
)
from moldau.client.kafka.librdkafka_settings import REQUEST_SECONDS_MAX, Settings, admin_settings
from moldau.client.protocols import Protocol, detect_protocol, mismatch
from moldau.client.retry import CONNECT_TRY_SECONDS_MAX, connect_failure

_CLOSED_AT_ONCE_HINT = (
    "is it the Kafka address of a broker (kafka.addr, port 9092 by default), and does it use TLS? "
    "see security.protocol · check it: moldau doctor"
)
_CLOSED_HINT = (
    "does the broker require a user or TLS? see security.protocol · check it: moldau doctor"
)
_NOT_ACKNOWLEDGED_HINT = (
    "disk full, or fewer replicas than min.insync.replicas? see the broker's log and: moldau doctor"
)

_UNREACHABLE = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})
_REJECTED = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})
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

_LINK = re.compile(r"^\S+://\S+: ")
_STATE = re.compile(r" \(after \d+ms in state [A-Z_]+[^)]*\)")

_HINTS = {
    KafkaError.MSG_SIZE_TOO_LARGE: "send smaller messages, or raise the topic's max.message.bytes",
    KafkaError.TOPIC_ALREADY_EXISTS: TOPIC_EXISTS_HINT,
    KafkaError.UNKNOWN_TOPIC_OR_PART: "list the topics: moldau topic list",
    KafkaError._UNKNOWN_PARTITION: "list the partitions: moldau topic describe NAME",
}


def probe(
    brokers: str,
    seconds_max: float = CONNECT_TRY_SECONDS_MAX,
    *,
    extra: Mapping[str, object] | None = None,
    is_kafka: bool = True,
) -> None:
    """Check that one of the brokers accepts connections. Raises UnreachableError.

    The protocol is checked with one request in plain text: not with TLS (in `extra`), whose
    listeners may close the connection for it.
    """
    security = str((extra or {}).get("security.protocol", ""))
    is_plain = is_kafka and not security.lower().endswith("ssl")
    reasons: list[str] = []
    wrong = hint = ""
    for host, port in split_brokers(brokers):
        try:
            with socket.create_connection((host, port), timeout=seconds_max) as connection:
                found = detect_protocol(connection) if is_plain else Protocol.UNKNOWN
        except OSError as error:
            reasons.append(connect_failure(error, seconds_max))
        else:
            is_wrong = mismatch(found, Protocol.KAFKA)
            if not is_wrong:
                return
            wrong = f"{host}:{port} is {is_wrong}"
            hint = _CLOSED_AT_ONCE_HINT if found is Protocol.CLOSED else KAFKA_PORT_HINT
    if wrong:
        raise UnreachableError(wrong, hint=hint)
    why = ", ".join(dict.fromkeys(reasons))
    raise UnreachableError(f"cannot reach {brokers} ({why})", hint=START_HINT)


class LinkErrors:
    """Why connections fail: librdkafka passes it to a callback, while requests only time out."""

    def __init__(self, *, is_long_lived: bool = False) -> None:
        self._error: KafkaError | None = None
        self._is_long_lived = is_long_lived

    def __call__(self, error: KafkaError) -> None:
        is_handshake = error.code() == KafkaError._SSL and "certificate" not in str(error.str())
        # A handshake also fails when a broker restarts.
        if error.code() in _REJECTED and not (is_handshake and self._is_long_lived):
            self._error = error

    def raise_rejection(self, brokers: str) -> None:
        """Raises ClientError if a broker has rejected our credentials since the last call."""
        error, self._error = self._error, None
        if error is not None:
            raise translate(error, brokers=brokers)

    def check(
        self, client: AdminClient | Producer, brokers: str, failure: Exception | None = None
    ) -> None:
        """After a request that failed for lack of a connection.

        Raises ClientError if a broker rejected our credentials or its certificate is bad.
        """
        cause = failure.args[0] if isinstance(failure, KafkaException) else None
        if isinstance(cause, KafkaError) and cause.code() not in _TIMED_OUT | _UNREACHABLE:
            # A broker responded: the connection is not what is wrong.
            return
        client.poll(0)
        self.raise_rejection(brokers)

    @contextmanager
    def checked(self, client: AdminClient | Producer, brokers: str) -> Iterator[None]:
        """As `check`, if librdkafka raises an error in the with block."""
        try:
            yield
        except KafkaException as error:
            self.check(client, brokers, error)
            raise


def connect_admin(
    brokers: str, extra: Mapping[str, str] | None = None, link: LinkErrors | None = None
) -> AdminClient:
    """An admin client; raises UnreachableError if no broker accepts connections."""
    probe(brokers, extra=extra)
    with translated(brokers):
        settings = admin_settings(brokers, extra)
        settings["error_cb"] = link or LinkErrors()
        return AdminClient(settings)


def connect_producer(settings: Settings, topic: str) -> tuple[Producer, Any]:
    """A producer that can send immediately, and librdkafka's metadata of the topic."""
    doing = f"produce to {topic}"
    brokers = str(settings["bootstrap.servers"])
    link = LinkErrors()
    with translated(brokers, doing):
        producer = Producer(Settings(settings, error_cb=link))
    with translated(brokers, doing), link.checked(producer, brokers):
        # Two requests. The first goes over the bootstrap connection, lists the brokers, and creates
        # the topic if auto-creation is on. librdkafka then reconnects, finds no broker for its
        # producer id, and would check again only after 500 ms; the second response makes it check.
        producer.list_topics(topic, timeout=REQUEST_SECONDS_MAX)
        found = producer.list_topics(topic, timeout=REQUEST_SECONDS_MAX).topics[topic]
    # Retriable errors are fine here: the topic is being created, or a leader elected.
    if found.error is not None and not found.error.retriable():
        raise translate(found.error, brokers=brokers, doing=doing)
    return producer, found


@contextmanager
def translated(brokers: str, doing: str = "") -> Iterator[None]:
    """Translates librdkafka's errors in a with block; `doing` is the failed action."""
    try:
        yield
    except KafkaException as error:
        raise translate(error, brokers=brokers, doing=doing) from error


def translate(
    error: KafkaException | KafkaError, *, brokers: str = "", doing: str = "", hint: str = ""
) -> ClientError:
    """Our error for a librdkafka error. `doing` is the failed action: "create topic orders"."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(cause, KafkaError):
        return ClientError(f"cannot {doing}: {cause}" if doing else str(cause), hint=hint)
    code, reason = cause.code(), _reason(cause)
    tried = f"cannot {doing}" if doing else "the request failed"
    if code in _UNREACHABLE:
        where = brokers or "the broker"
        return UnreachableError(
            f"cannot reach {where} ({reason})",
            hint=hint or _CLOSED_HINT,
        )
    if code in _REJECTED:
        return ClientError(
            f"cannot connect to {brokers or 'the broker'}: {_without_address(reason)}",
            hint=hint or login_hint(reason, SECURITY_HINT),
        )
    if code == KafkaError._MSG_TIMED_OUT:
        # The broker may have responded to each attempt with a retriable error.
        message = f"{tried}: not acknowledged by {brokers or 'the broker'} in time"
        return TimedOutError(message, hint=hint or _NOT_ACKNOWLEDGED_HINT)
    if code in _TIMED_OUT:
        message = f"{tried}: request to {brokers or 'the broker'} timed out"
        return TimedOutError(message, hint=hint or "find the cause: moldau doctor")
    hint = hint or _HINTS.get(code, "")
    if code in _NOT_FOUND:
        return NotFoundError(f"{tried}: {reason}", hint=hint)
    if code > 0:
        # Codes below 0 are librdkafka's own.
        return RejectedError(f"{tried}: {reason}", code, hint=hint)
    return ClientError(f"{tried}: {reason}", hint=hint)


def _reason(cause: KafkaError) -> str:
    """The error's text without librdkafka's prefixes."""
    text = str(cause.str()).removeprefix("Unable to produce message: ")
    for remark in ("Broker: ", "Local: "):
        text = text.replace(remark, "")
    return text or str(cause.name())


def _without_address(reason: str) -> str:
    """librdkafka writes "sasl_plaintext://host:9092/bootstrap: reason (after 12ms in state …)"."""
    text = _LINK.sub("", reason)
    return _STATE.sub("", text).strip() or reason
