"""The settings of security: certificates, users, and listeners by name."""

import json
from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from moldau.model.secret import Secret
from moldau.model.topology import Endpoint
from moldau.server.config.setting import Setting, Unit

SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class ListenerProtocol(StrEnum):
    """What a listener serves."""

    KAFKA = "kafka"
    GRPC = "grpc"
    HTTP = "http"
    PEERS = "peers"


class ListenerSecurity(StrEnum):
    """How the connections of a listener are encrypted."""

    PLAINTEXT = "plaintext"
    TLS = "tls"
    MTLS = "mtls"
    """TLS, and the client must have a certificate of the client CA."""


class Authentication(StrEnum):
    """Whom a gRPC or HTTP listener serves."""

    NONE = "none"
    USERS = "users"


class Authorization(StrEnum):
    """Whether ACLs are checked."""

    AUTO = "auto"
    ACLS = "acls"
    NONE = "none"


class ListenerConfig(Struct, frozen=True, kw_only=True):
    """One listener: of `listeners`, or made of the settings of a section."""

    name: str
    protocol: ListenerProtocol
    address: Endpoint
    advertised: Endpoint | None = None
    security: ListenerSecurity = ListenerSecurity.PLAINTEXT
    sasl: tuple[str, ...] = ()
    """SASL mechanisms of a Kafka listener."""
    authentication: Authentication = Authentication.NONE
    """Of a gRPC or HTTP listener."""
    read_only: bool = False
    cert_file: str | None = None
    key_file: str | None = None
    client_ca_file: str | None = None
    setting: str = ""
    """The setting of the address, for errors."""

    @property
    def uses_tls(self) -> bool:
        return self.security is not ListenerSecurity.PLAINTEXT

    @property
    def authenticates(self) -> bool:
        """Whether it serves no one but clients that it knows."""
        return (
            self.security is ListenerSecurity.MTLS
            or bool(self.sasl)
            or self.authentication is Authentication.USERS
            # Brokers prove to each other that they know the secret of their cluster.
            or self.protocol is ListenerProtocol.PEERS
        )


class Listeners(tuple[ListenerConfig, ...]):
    """The setting `listeners`."""

    __slots__ = ()

    def __str__(self) -> str:
        return json.dumps([_plain(one) for one in self])


def _plain(listener: ListenerConfig) -> dict[str, object]:
    """The fields that differ from their default, as a file has them."""
    found: dict[str, object] = {}
    for name, default in _DEFAULTS.items():
        value = getattr(listener, name)
        if value != default:
            plain = str(value) if isinstance(value, Endpoint) else value
            found[name] = list(plain) if isinstance(plain, tuple) else plain
    return found


_DEFAULTS: dict[str, object] = {
    "name": None,
    "protocol": None,
    "address": None,
    "advertised": None,
    "security": ListenerSecurity.PLAINTEXT,
    "sasl": (),
    "authentication": Authentication.NONE,
    "read_only": False,
    "cert_file": None,
    "key_file": None,
    "client_ca_file": None,
}
LISTENER_FIELDS = tuple(_DEFAULTS)


class SecurityConfig(Struct, frozen=True, kw_only=True):
    """Certificates, and who may do what."""

    cert_file: Annotated[
        str | None,
        Setting(
            "The certificate of this broker for TLS, with those of its issuers below it: a PEM "
            "file. It is loaded again when it changes, as are the other files. Several, separated "
            "by commas: the host name that a client connects to selects one (SNI)."
        ),
    ] = None
    key_file: Annotated[
        str | None,
        Setting(
            "The private key of the certificate: a PEM file that only the broker can read. With "
            "several certificates, their keys in the same order."
        ),
    ] = None
    key_password: Annotated[
        Secret | None,
        Setting("The password of the private key. Only in a file or the environment."),
    ] = None
    client_ca_file: Annotated[
        str | None,
        Setting("The certificates that sign those of clients (mtls): a PEM file."),
    ] = None
    authorization: Annotated[
        Authorization,
        Setting(
            "Whether ACLs are checked: acls, none, or auto: as soon as any listener authenticates "
            "its clients."
        ),
    ] = Authorization.AUTO
    super_users: Annotated[
        str | None,
        Setting("Users that may do everything, separated by semicolons: User:alice;User:bob."),
    ] = None
    principal_mapping: Annotated[
        str | None,
        Setting(
            "How the subject of a client certificate becomes a user name: rules as those of "
            "Kafka's ssl.principal.mapping.rules. Unset: the whole subject."
        ),
    ] = None
    session_ms_max: Annotated[
        int | None,
        Setting(
            "Kafka clients that authenticate by SASL must do so again after this long, which they "
            "do by themselves; connections of others are closed. Unset: never, except when a token "
            "expires.",
            Unit.MILLISECONDS,
            min=1000,
        ),
    ] = None
    oidc_jwks_url: Annotated[
        str | None,
        Setting(
            "Where the identity provider has the keys of its tokens (OAUTHBEARER, and Bearer of "
            "HTTP and gRPC): https://…, nothing else. Unset: no tokens of a provider are accepted."
        ),
    ] = None
    oidc_issuer: Annotated[str | None, Setting("The issuer (claim iss) that tokens must have.")] = (
        None
    )
    oidc_audience: Annotated[
        str | None, Setting("The audience (claim aud) that tokens must be for.")
    ] = None
    oidc_principal_claim: Annotated[
        str, Setting("The claim of a token that is the name of the user.")
    ] = "sub"
    oidc_algorithms: Annotated[
        str,
        Setting(
            "Algorithms that tokens may be signed with, separated by commas; only asymmetric ones."
        ),
    ] = "RS256,ES256"
    oidc_clock_skew_ms: Annotated[
        int,
        Setting(
            "How much the clocks of broker and identity provider may differ.",
            Unit.MILLISECONDS,
            min=0,
            max=600_000,
        ),
    ] = 30_000
    oidc_ca_file: Annotated[
        str | None,
        Setting(
            "The certificates that sign that of the identity provider: a PEM file. Unset: those "
            "that the operating system trusts."
        ),
    ] = None
    insecure: Annotated[
        bool,
        Setting(
            "Serve everyone who reaches the broker: listeners without authentication may be bound "
            "to addresses other than loopback."
        ),
    ] = False

    @property
    def oidc_algorithm_list(self) -> tuple[str, ...]:
        return tuple(one.strip() for one in self.oidc_algorithms.split(",") if one.strip())

    @property
    def super_user_list(self) -> tuple[str, ...]:
        return tuple(one.strip() for one in (self.super_users or "").split(";") if one.strip())
