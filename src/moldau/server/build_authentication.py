"""Builds what finds out who clients are, from the settings of security."""

import asyncio
import hmac
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.api.audit import AuditLog, to_logger
from moldau.api.authentication import Authenticator
from moldau.api.entrance import Entrance
from moldau.api.login_throttle import LoginThrottle
from moldau.api.login_tokens import LoginTokens
from moldau.api.password_check import OsHashThreads
from moldau.api.session import ListenerAccess, Sessions
from moldau.edge.kafka.certificate_gate import CertificateGate
from moldau.edge.kafka.client_login import LoginRules
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.sasl_gate import SaslGate
from moldau.metadata.image import Image
from moldau.metadata.security import User
from moldau.net.limits import ConnectionLimits
from moldau.security.certificate_names import CertificateNames
from moldau.security.principal import LOCAL_ADMIN, Principal, parse_principal
from moldau.server.config.listeners import listeners_for, listeners_of
from moldau.server.config.schema import ServerConfig
from moldau.server.config.security_schema import (
    Authorization,
    ListenerConfig,
    ListenerProtocol,
    ListenerSecurity,
)
from moldau.server.kafka_server import Gate
from moldau.server.machine import Machine

if TYPE_CHECKING:
    from moldau.server.oidc import OidcTokens

_DECOY_LABEL = b"moldau decoy credentials"


def super_users(config: ServerConfig) -> frozenset[Principal] | None:
    """Who may do everything; None if everybody may."""
    security = config.security
    if security.authorization is Authorization.NONE:
        return None
    if security.authorization is Authorization.AUTO and not has_users(config):
        return None
    named = {parse_principal(text) for text in security.super_user_list}
    return frozenset({LOCAL_ADMIN, *named})


def _login_audit(config: ServerConfig, machine: Machine) -> AuditLog | None:
    """Where everybody may do everything, logins are not recorded."""
    return None if super_users(config) is None else AuditLog(machine.clock, to_logger)


def has_users(config: ServerConfig) -> bool:
    """Whether a listener asks its clients who they are."""
    clients = (one for one in listeners_of(config) if one.protocol is not ListenerProtocol.PEERS)
    return any(listener.authenticates for listener in clients)


class Authentication:
    """Who clients are, for all protocol servers of a broker."""

    def __init__(
        self,
        config: ServerConfig,
        machine: Machine,
        root: Path,
        users: Callable[[], Mapping[str, User]],
        cluster_secret: bytes,
    ) -> None:
        """By the secret of the cluster, all brokers answer for unknown users with the same salt,
        also after a restart; another salt each time would say that a user does not exist."""
        self._config = config
        self._clock = machine.clock
        self._gates: list[SaslGate] = []
        self._users = users()
        self._tokens: OidcTokens | None = None
        if config.security.oidc_jwks_url is not None:
            # Imported here: without tokens, the libraries for signatures are not loaded.
            from moldau.server.oidc import oidc_tokens

            self._tokens = oidc_tokens(config.security, machine.clock)
        self._login_tokens = LoginTokens(
            secret=cluster_secret,
            users=users,
            clock=machine.clock,
            others=self._tokens,
        )
        self.authenticator = Authenticator(
            users=users,
            throttle=LoginThrottle(machine.clock),
            threads=OsHashThreads(),
            decoy_key=hmac.digest(cluster_secret, _DECOY_LABEL, "sha256"),
            random_bytes=machine.secret_bytes,
            admin_token=machine.admin_token(root, cluster_secret),
            tokens=self._login_tokens,
            certificate_names=CertificateNames(config.security.principal_mapping or "DEFAULT"),
            audit=_login_audit(config, machine),
        )

    def on_image(self, image: Image) -> None:
        """The metadata changed: logs out users that were deleted."""
        if image.users is not self._users:
            self._users = image.users
            for gate in self._gates:
                gate.close_deleted()

    def logins(self) -> Mapping[tuple[str, str], int]:
        """Since the start, by mechanism and result."""
        return self.authenticator.logins.counts

    def gate(
        self, listener: ListenerConfig, dispatcher: Dispatcher, limits: ConnectionLimits
    ) -> Gate:
        """What stands in front of the dispatcher of a Kafka listener."""
        if listener.sasl:
            rules = LoginRules(
                authenticator=self.authenticator,
                mechanisms=listener.sasl,
                clock=self._clock,
                session_ms_max=self._config.security.session_ms_max,
            )
            gate = SaslGate(dispatcher, rules, limits)
            self._gates.append(gate)
            return Gate(gate, gate.on_accepted)
        if listener.security is ListenerSecurity.MTLS:
            return Gate(CertificateGate(dispatcher, self.authenticator))
        return Gate(dispatcher)

    def http(self, sessions: Sessions) -> Entrance:
        """The way in for clients of HTTP."""
        return self._entrance(sessions, ListenerProtocol.HTTP)

    def grpc(self, sessions: Sessions) -> Entrance:
        """The way in for clients of gRPC."""
        return self._entrance(sessions, ListenerProtocol.GRPC)

    def _entrance(self, sessions: Sessions, protocol: ListenerProtocol) -> Entrance:
        """These protocols have one listener at most."""
        listener = next(iter(listeners_for(self._config, protocol)), None)
        if listener is None:
            return Entrance(sessions)
        is_http = protocol is ListenerProtocol.HTTP
        # Where nobody is asked and everybody may do everything, credentials mean nothing: such as
        # those that a browser or a proxy in front adds, for something else.
        has_meaning = has_users(self._config) or sessions.authorizes
        return Entrance(
            sessions,
            access=ListenerAccess(
                name=listener.name,
                read_only=listener.read_only,
                public_metrics=is_http and self._config.http.public_metrics,
            ),
            authenticator=self.authenticator if has_meaning else None,
            tokens=self._login_tokens,
            is_login_required=listener.authenticates,
        )

    async def stop(self) -> None:
        await asyncio.gather(*(gate.stop() for gate in self._gates))
        if self._tokens is not None:
            await self._tokens.stop()
        self.authenticator.stop()
