"""Owns adapters of unmodified Kafka clients that log in: produce, read in a group, and be refused.

Each gives one face to its client's own names for mechanism, user, password and token.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
import kafka.net.sasl.oauth
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider

from moldau.testing.waiting import wait_seconds_max, wait_until


@dataclass(frozen=True)
class Credentials:
    """What a client logs in with; `token` is called for each login."""

    mechanism: str
    user: str = ""
    password: str = ""
    token: Callable[[], str] | None = None


class SaslClient(Protocol):
    name: str

    def produce(
        self, bootstrap: str, credentials: Credentials, topic: str, values: Sequence[bytes]
    ) -> None:
        """Raises the client's own error if it is refused."""

    def consume(
        self, bootstrap: str, credentials: Credentials, topic: str, group: str, count: int
    ) -> list[bytes]: ...

    def produce_until(
        self, bootstrap: str, credentials: Credentials, topic: str, is_done: Callable[[], bool]
    ) -> list[bytes]:
        """One client sends one message after the other; those that were acknowledged."""

    def login_failure(self, bootstrap: str, credentials: Credentials) -> str:
        """What the client says about a login that must fail."""


def librdkafka_settings(bootstrap: str, credentials: Credentials) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": credentials.mechanism,
        "log_level": 0,
    }
    if (token := credentials.token) is not None:
        # The client renews it when it expires by its own clock.
        settings["oauth_cb"] = lambda _: (token(), time.time() + 3600)
    else:
        settings |= {"sasl.username": credentials.user, "sasl.password": credentials.password}
    return settings


class ConfluentSasl:
    name = "confluent-kafka"

    def produce(
        self, bootstrap: str, credentials: Credentials, topic: str, values: Sequence[bytes]
    ) -> None:
        failures: list[Any] = []
        producer = confluent_kafka.Producer(
            {**librdkafka_settings(bootstrap, credentials), "message.timeout.ms": 30_000}
        )
        for value in values:
            producer.produce(
                topic, value, on_delivery=lambda error, _: failures.append(error) if error else None
            )
        left = producer.flush(wait_seconds_max())
        if failures:
            raise confluent_kafka.KafkaException(failures[0])
        assert left == 0

    def produce_until(
        self, bootstrap: str, credentials: Credentials, topic: str, is_done: Callable[[], bool]
    ) -> list[bytes]:
        sent: list[bytes] = []
        failures: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                sent.append(message.value())
            else:
                failures.append(error)

        producer = confluent_kafka.Producer(librdkafka_settings(bootstrap, credentials))
        for number in itertools.takewhile(lambda _: not is_done(), itertools.count()):
            producer.produce(topic, b"%d" % number, on_delivery=delivered)
            assert (producer.flush(wait_seconds_max()), failures) == (0, [])
        return sent

    def consume(
        self, bootstrap: str, credentials: Credentials, topic: str, group: str, count: int
    ) -> list[bytes]:
        consumer = confluent_kafka.Consumer(
            {
                **librdkafka_settings(bootstrap, credentials),
                "group.id": group,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic])
        received: list[bytes] = []

        def has_all() -> bool:
            found: list[Any] = consumer.consume(count - len(received), 0.5)
            for message in found:
                if message.error() is not None:
                    raise confluent_kafka.KafkaException(message.error())
                received.append(message.value())
            return len(received) >= count

        try:
            wait_until(has_all, f"{count} messages are read", describe=lambda: len(received))
        finally:
            consumer.close()
        return received

    def login_failure(self, bootstrap: str, credentials: Credentials) -> str:
        errors: list[str] = []
        producer = confluent_kafka.Producer(
            {
                **librdkafka_settings(bootstrap, credentials),
                "error_cb": lambda error: errors.append(str(error)),
            }
        )

        def told() -> bool:
            producer.poll(0.1)
            return any("_AUTHENTICATION" in error for error in errors)

        wait_until(told, "the client was told", describe=lambda: errors)
        return next(error for error in errors if "_AUTHENTICATION" in error)


class _PythonToken(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: Callable[[], str]) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token()


def python_settings(bootstrap: str, credentials: Credentials) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": credentials.mechanism,
    }
    if credentials.token is not None:
        settings["sasl_oauth_token_provider"] = _PythonToken(credentials.token)
    else:
        settings["sasl_plain_username"] = credentials.user
        settings["sasl_plain_password"] = credentials.password
    return settings


class KafkaPythonSasl:
    name = "kafka-python"

    def produce(
        self, bootstrap: str, credentials: Credentials, topic: str, values: Sequence[bytes]
    ) -> None:
        producer = kafka.KafkaProducer(**python_settings(bootstrap, credentials))
        try:
            sent = [producer.send(topic, value) for value in values]
            for future in sent:
                future.get(wait_seconds_max())
        finally:
            producer.close(wait_seconds_max())

    def produce_until(
        self, bootstrap: str, credentials: Credentials, topic: str, is_done: Callable[[], bool]
    ) -> list[bytes]:
        sent: list[bytes] = []
        producer = kafka.KafkaProducer(**python_settings(bootstrap, credentials))
        try:
            for number in itertools.takewhile(lambda _: not is_done(), itertools.count()):
                producer.send(topic, b"%d" % number).get(wait_seconds_max())
                sent.append(b"%d" % number)
        finally:
            producer.close(wait_seconds_max())
        return sent

    def consume(
        self, bootstrap: str, credentials: Credentials, topic: str, group: str, count: int
    ) -> list[bytes]:
        consumer = kafka.KafkaConsumer(
            topic,
            **python_settings(bootstrap, credentials),
            group_id=group,
            auto_offset_reset="earliest",
        )
        received: list[bytes] = []

        def has_all() -> bool:
            for records in consumer.poll(timeout_ms=1000).values():
                received.extend(record.value for record in records)
            return len(received) >= count

        try:
            wait_until(has_all, f"{count} messages are read", describe=lambda: len(received))
        finally:
            consumer.close()
        return received

    def login_failure(self, bootstrap: str, credentials: Credentials) -> str:
        with _logged("kafka") as lines:
            try:
                settings = python_settings(bootstrap, credentials)
                kafka.KafkaProducer(**settings, bootstrap_timeout_ms=1000).close()
            except kafka.errors.KafkaError as error:
                return f"{error} {lines}"
        raise AssertionError("the login did not fail")


class _AioToken(AioTokenProvider):  # type: ignore[misc]
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token()


def aio_settings(bootstrap: str, credentials: Credentials) -> dict[str, Any]:
    settings = python_settings(bootstrap, credentials)
    if credentials.token is not None:
        settings["sasl_oauth_token_provider"] = _AioToken(credentials.token)
    return settings


class AioKafkaSasl:
    name = "aiokafka"

    def produce(
        self, bootstrap: str, credentials: Credentials, topic: str, values: Sequence[bytes]
    ) -> None:
        async def send() -> None:
            producer = aiokafka.AIOKafkaProducer(**aio_settings(bootstrap, credentials))
            await producer.start()
            try:
                for value in values:
                    await producer.send_and_wait(topic, value)
            finally:
                await producer.stop()

        asyncio.run(asyncio.wait_for(send(), wait_seconds_max()))

    def produce_until(
        self, bootstrap: str, credentials: Credentials, topic: str, is_done: Callable[[], bool]
    ) -> list[bytes]:
        async def send() -> list[bytes]:
            sent: list[bytes] = []
            producer = aiokafka.AIOKafkaProducer(
                **aio_settings(bootstrap, credentials), enable_idempotence=True
            )
            await producer.start()
            try:
                for number in itertools.takewhile(lambda _: not is_done(), itertools.count()):
                    await producer.send_and_wait(topic, b"%d" % number)
                    sent.append(b"%d" % number)
            finally:
                await producer.stop()
            return sent

        return asyncio.run(asyncio.wait_for(send(), wait_seconds_max()))

    def consume(
        self, bootstrap: str, credentials: Credentials, topic: str, group: str, count: int
    ) -> list[bytes]:
        async def read() -> list[bytes]:
            consumer = aiokafka.AIOKafkaConsumer(
                topic,
                **aio_settings(bootstrap, credentials),
                group_id=group,
                auto_offset_reset="earliest",
            )
            received: list[bytes] = []
            await consumer.start()
            try:
                while len(received) < count:
                    for records in (await consumer.getmany(timeout_ms=500)).values():
                        received.extend(record.value for record in records)
            finally:
                await consumer.stop()
            return received

        return asyncio.run(asyncio.wait_for(read(), wait_seconds_max()))

    def login_failure(self, bootstrap: str, credentials: Credentials) -> str:
        async def start() -> str:
            producer = aiokafka.AIOKafkaProducer(**aio_settings(bootstrap, credentials))
            with _logged("aiokafka") as lines:
                try:
                    await producer.start()
                except aiokafka.errors.KafkaError as error:
                    return f"{error} {lines}"
                finally:
                    await producer.stop()
            raise AssertionError("the login did not fail")

        return asyncio.run(asyncio.wait_for(start(), wait_seconds_max()))


@contextlib.contextmanager
def _logged(name: str) -> Iterator[list[str]]:
    """What a client logs meanwhile: there it has the reason, and none in what it raises."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Lines(), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


CLIENTS: dict[str, Callable[[], SaslClient]] = {
    client.name: client for client in (ConfluentSasl, KafkaPythonSasl, AioKafkaSasl)
}
