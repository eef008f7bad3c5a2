"""Builds what finds out who clients are, from the settings of security."""

import asyncio
import hmac
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.api.authentication import Authenticator
from moldau.api.login_throttle import LoginThrottle
from moldau.api.password_check import OsHashThreads
from moldau.edge.kafka.certificate_gate import CertificateGate
from moldau.edge.kafka.client_login import LoginRules
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.sasl_gate import SaslGate
from moldau.metadata.security import User
from moldau.net.connection import ConnectionLimits
from moldau.security.certificate_names import CertificateNames
from moldau.security.principal import LOCAL_ADMIN, Principal, parse_principal
from moldau.server.config.listeners import listeners_of
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

_DECOY_KEY_BYTES = 32
_DECOY_LABEL = b"moldau decoy credentials"


def super_users(config: ServerConfig) -> frozenset[Principal] | None:
    """Who may do everything; None if everybody may."""
    security = config.security
    if security.authorization is Authorization.NONE:
        return None
    clients = [one for one in listeners_of(config) if one.protocol is not ListenerProtocol.PEERS]
    if security.authorization is Authorization.AUTO and not any(
        listener.authenticates for listener in clients
    ):
        return None
    named = {parse_principal(text) for text in security.super_user_list}
    return frozenset({LOCAL_ADMIN, *named})


class Authentication:
    """Who clients are, for all protocol servers of a broker."""

    def __init__(
        self,
        config: ServerConfig,
        machine: Machine,
        root: Path,
        users: Callable[[], Mapping[str, User]],
        cluster_secret: bytes | None = None,
    ) -> None:
        """With the secret of the cluster, all brokers answer for unknown users with the same salt,
        also after a restart; another salt each time would say that a user does not exist."""
        self._config = config
        self._clock = machine.clock
        self._gates: list[SaslGate] = []
        self._tokens: OidcTokens | None = None
        if config.security.oidc_jwks_url is not None:
            # Imported here: without tokens, the libraries for signatures are not loaded.
            from moldau.server.oidc import oidc_tokens

            self._tokens = oidc_tokens(config.security, machine.clock)
        self.authenticator = Authenticator(
            users=users,
            throttle=LoginThrottle(machine.clock),
            threads=OsHashThreads(),
            decoy_key=(
                machine.secret_bytes(_DECOY_KEY_BYTES)
                if cluster_secret is None
                else hmac.digest(cluster_secret, _DECOY_LABEL, "sha256")
            ),
            random_bytes=machine.secret_bytes,
            admin_token=machine.admin_token(root),
            tokens=self._tokens,
            certificate_names=CertificateNames(config.security.principal_mapping or "DEFAULT"),
        )

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

    async def stop(self) -> None:
        await asyncio.gather(*(gate.stop() for gate in self._gates))
        if self._tokens is not None:
            await self._tokens.stop()
        self.authenticator.stop()
