"""Logs in once before librdkafka does, which reports a wrong password only as a timeout."""

from collections.abc import Mapping

from moldau.client.addresses import split_brokers
from moldau.client.errors import ClientError, InvalidArgumentError, TimedOutError, UnreachableError
from moldau.client.librdkafka_security import security_of
from moldau.client.retry import CONNECT_TRY_SECONDS_MAX


def check_login(brokers: str, properties: Mapping[str, str]) -> None:
    """Raises ClientError if the broker rejects the user, or its certificate is not trusted."""
    if not any(name == "security.protocol" for name in properties):
        return
    from moldau.client.wire.connection import KafkaConnection

    try:
        security = security_of(properties)
    except InvalidArgumentError:
        # librdkafka has more mechanisms and forms than our parser; it will say what is wrong.
        return
    failure: ClientError | None = None
    for host, port in split_brokers(brokers):
        try:
            with KafkaConnection(
                host, port, timeout=CONNECT_TRY_SECONDS_MAX, security=security
            ) as connection:
                # With TLS 1.3 a broker rejects our certificate only at the first request.
                connection.served_versions()
            return
        except (UnreachableError, TimedOutError) as error:
            failure = failure or error
    if failure is not None:
        raise failure
