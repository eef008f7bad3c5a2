"""Owns adapters of unmodified Kafka clients that log in: produce, read in a group, and be refused.

Each gives one face to its client's own names for mechanism, user, password, token and TLS.
"""

import asyncio
import contextlib
import itertools
import logging
import ssl
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

SEND_PAUSE_SECONDS = 0.01
"""Between the messages of a steady stream: one without pauses takes all of a core."""


@dataclass(frozen=True)
class ClientTls:
    """What a client trusts, and the files of its certificate and key."""

    ca_file: str
    certificate: tuple[str, str] | None = None

    def context(self) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate is not None:
            found.load_cert_chain(*self.certificate)
        return found


@dataclass(frozen=True)
class Credentials:
    """What a client logs in with; `token` is called for each login. No mechanism: a certificate."""

    mechanism: str
    user: str = ""
    password: str = ""
    token: Callable[[], str] | None = None
    tls: ClientTls | None = None

    @property
    def protocol(self) -> str:
        below = "PLAINTEXT" if self.tls is None else "SSL"
        return f"SASL_{below}" if self.mechanism else below


class SaslClient(Protocol):
    name: str

    def produce(
        self, bootstrap: str, credentials: Credentials, topic: str, values: Sequence[bytes]
    ) -> None:
        """Raises the client's own error if it is refused."""

    def consume_until(
        self,
        bootstrap: str,
        credentials: Credentials,
        topic: str,
        group: str,
        is_done: Callable[[list[bytes]], bool],
    ) -> list[bytes]:
        """One client reads in a group. Raises the client's own error if it is refused."""

    def produce_until(
        self, bootstrap: str, credentials: Credentials, topic: str, is_done: Callable[[], bool]
    ) -> list[bytes]:
        """One client sends one message after the other; those that were acknowledged."""

    def login_failure(self, bootstrap: str, credentials: Credentials) -> str:
        """What the client says about a handshake or login that must fail."""


def consume(
    client: SaslClient, bootstrap: str, credentials: Credentials, topic: str, group: str, count: int
) -> list[bytes]:
    return client.consume_until(
        bootstrap, credentials, topic, group, lambda received: len(received) >= count
    )


def librdkafka_settings(bootstrap: str, credentials: Credentials) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": credentials.protocol,
        "log_level": 0,
    }
    if (tls := credentials.tls) is not None:
        settings["ssl.ca.location"] = tls.ca_file
        if tls.certificate is not None:
            settings["ssl.certificate.location"] = tls.certificate[0]
            settings["ssl.key.location"] = tls.certificate[1]
    if not credentials.mechanism:
        return settings
    settings["sasl.mechanism"] = credentials.mechanism
    if (token := credentials.token) is not None:
        # The client renews it when it expires by its own clock.
        settings["oauth_cb"] = lambda _: (token(), time.time() + 3600)
    else:
        settings |= {"sasl.username": credentials.user, "sasl.password": credentials.password}
    return settings


def numbers_until(is_done: Callable[[], bool]) -> Iterator[int]:
    return itertools.takewhile(lambda _: not is_done(), itertools.count())


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
        for number in numbers_until(is_done):
            producer.produce(topic, b"%d" % number, on_delivery=delivered)
            assert (producer.flush(wait_seconds_max()), failures) == (0, [])
            time.sleep(SEND_PAUSE_SECONDS)
        return sent

    def consume_until(
        self,
        bootstrap: str,
        credentials: Credentials,
        topic: str,
        group: str,
        is_done: Callable[[list[bytes]], bool],
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
            found: list[Any] = consumer.consume(500, 0.2)
            for message in found:
                if message.error() is not None:
                    raise confluent_kafka.KafkaException(message.error())
                received.append(message.value())
            return is_done(received)

        try:
            wait_until(has_all, "all messages are read", describe=lambda: len(received))
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

        def is_refused(error: str) -> bool:
            return any(text in error for text in ("_AUTHENTICATION", "_SSL", " alert "))

        def told() -> bool:
            producer.poll(0.1)
            return any(map(is_refused, errors))

        wait_until(told, "the client was told", describe=lambda: errors)
        return next(filter(is_refused, errors))


class _PythonToken(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: Callable[[], str]) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token()


def python_settings(bootstrap: str, credentials: Credentials) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": credentials.protocol,
    }
    if credentials.tls is not None:
        settings["ssl_context"] = credentials.tls.context()
    if not credentials.mechanism:
        return settings
    settings["sasl_mechanism"] = credentials.mechanism
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
            for number in numbers_until(is_done):
                producer.send(topic, b"%d" % number).get(wait_seconds_max())
                sent.append(b"%d" % number)
                time.sleep(SEND_PAUSE_SECONDS)
        finally:
            producer.close(wait_seconds_max())
        return sent

    def consume_until(
        self,
        bootstrap: str,
        credentials: Credentials,
        topic: str,
        group: str,
        is_done: Callable[[list[bytes]], bool],
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
            return is_done(received)

        try:
            wait_until(has_all, "all messages are read", describe=lambda: len(received))
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
                for number in numbers_until(is_done):
                    await producer.send_and_wait(topic, b"%d" % number)
                    sent.append(b"%d" % number)
                    await asyncio.sleep(SEND_PAUSE_SECONDS)
            finally:
                await producer.stop()
            return sent

        return asyncio.run(asyncio.wait_for(send(), wait_seconds_max()))

    def consume_until(
        self,
        bootstrap: str,
        credentials: Credentials,
        topic: str,
        group: str,
        is_done: Callable[[list[bytes]], bool],
    ) -> list[bytes]:
        async def read() -> list[bytes]:
            consumer = aiokafka.AIOKafkaConsumer(
                topic,
                **aio_settings(bootstrap, credentials),
                group_id=group,
                auto_offset_reset="earliest",
            )
            received: list[bytes] = []
            try:
                await consumer.start()
                while not is_done(received):
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


def refusal_of(error: Exception) -> str:
    """The client's own name of what it raised."""
    if isinstance(error, confluent_kafka.KafkaException):
        return str(error.args[0].name())
    return type(error).__name__


CLIENTS: dict[str, Callable[[], SaslClient]] = {
    client.name: client for client in (ConfluentSasl, KafkaPythonSasl, AioKafkaSasl)
}
