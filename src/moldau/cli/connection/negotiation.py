"""Which SASL mechanism to log in with: the best that the broker's listener supports."""

from collections.abc import Mapping
from typing import Final

from moldau.cli.errors import CommandError
from moldau.client.addresses import split_brokers
from moldau.client.security import parse_security
from moldau.model.errors import MoldauError
from moldau.model.loopback import is_loopback

MECHANISM_DEFAULT: Final = "SCRAM-SHA-512"
_SCRAM: Final = (MECHANISM_DEFAULT, "SCRAM-SHA-256")
"""The broker does not learn the password."""
_SECONDS_MAX: Final = 1.0


def chosen_mechanism(brokers: str, tls: Mapping[str, str] | None) -> str:
    """Asks the first broker that responds. The default if none does, which is reported later.

    PLAIN is chosen only where nobody else can read the password.
    """
    for host, port in split_brokers(brokers):
        try:
            offered = _offered(host, port, tls)
        except MoldauError:
            continue
        may_be_read = tls is not None or is_loopback(host)
        wanted = (*_SCRAM, "PLAIN") if may_be_read else _SCRAM
        return next((name for name in wanted if name in offered), MECHANISM_DEFAULT)
    return MECHANISM_DEFAULT


def check_takes_tokens(brokers: str, tls: Mapping[str, str] | None) -> None:
    """Raises CommandError if the listener cannot be used with the token of a login."""
    for host, port in split_brokers(brokers):
        try:
            offered = _offered(host, port, tls)
        except MoldauError:
            continue
        if offered and "OAUTHBEARER" not in offered:
            raise CommandError(
                f"the Kafka listener {host}:{port} does not accept tokens of moldau login",
                hint="pass --user NAME · or add OAUTHBEARER to its kafka.sasl_mechanisms",
            )
        return


def _offered(host: str, port: int, tls: Mapping[str, str] | None) -> list[str]:
    """The mechanisms of a listener; none if it has no SASL. Raises MoldauError."""
    from moldau.client.wire.connection import KafkaConnection
    from moldau.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
    from moldau.wire.registry import ApiKey

    security = parse_security({} if tls is None else {"security.protocol": "SSL", **tls})
    with KafkaConnection(host, port, timeout=_SECONDS_MAX, security=security) as connection:
        if ApiKey.SASL_HANDSHAKE not in connection.served_versions():
            return []
        request = SaslHandshakeRequest(mechanism=MECHANISM_DEFAULT)
        return list(connection.request(request, SaslHandshakeResponse, 1).mechanisms)
