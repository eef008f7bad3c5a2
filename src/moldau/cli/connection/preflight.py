"""Logs in once before librdkafka does.

It reports a wrong password only as a timeout, and sends it to every address that a broker names.
"""

from collections.abc import Mapping
from typing import Final

from moldau.client.addresses import split_brokers
from moldau.client.errors import ClientError, InvalidArgumentError, TimedOutError, UnreachableError
from moldau.client.librdkafka_security import security_of

_LOGIN_SECONDS_MAX: Final = 8.0
"""A broker makes a login wait for up to five seconds while others of the user fail."""


def check_login(brokers: str, properties: Mapping[str, str]) -> None:
    """Raises ClientError if the broker rejects the user, its certificate is not trusted, or a
    password would leave this machine in plain text."""
    if not any(name == "security.protocol" for name in properties):
        return
    from moldau.client.wire.connection import KafkaConnection
    from moldau.wire.messages.metadata import MetadataRequest, MetadataResponse

    try:
        security = security_of(properties)
    except InvalidArgumentError:
        # librdkafka has more mechanisms and forms than our parser; it will say what is wrong.
        return
    failure: ClientError | None = None
    given = split_brokers(brokers)
    for host, port in given:
        try:
            with KafkaConnection(
                host, port, timeout=_LOGIN_SECONDS_MAX, security=security
            ) as connection:
                # With TLS 1.3 a broker rejects our certificate only at the first request.
                found = connection.request(MetadataRequest(topics=[]), MetadataResponse)
            for broker in found.brokers:
                security.check_advertised(broker.host, [host for host, _ in given])
            return
        except (UnreachableError, TimedOutError) as error:
            failure = failure or error
    if failure is not None:
        raise failure
