"""The frames of a listener whose clients have certificates (mTLS) and no SASL."""

import logging

from moldau.api.authentication import Authenticator
from moldau.edge.kafka.handler import host_of
from moldau.edge.kafka.sasl_gate import PrincipalHandler
from moldau.net.connection import Connection
from moldau.security.sasl import AuthenticationError


class CertificateGate:
    """Names the client by its certificate, which TLS has verified, at its first request."""

    def __init__(self, handler: PrincipalHandler, authenticator: Authenticator) -> None:
        self._handler = handler
        self._authenticator = authenticator

    def on_frame(self, connection: Connection, frame: memoryview) -> None:
        if connection.state is None:
            certificate = connection.peer_certificate
            if certificate is None:
                # Never the case; but then it must not be served as somebody else.
                connection.close("it has no certificate", level=logging.ERROR)
                return
            try:
                principal = self._authenticator.of_certificate(
                    certificate.subject, host_of(connection)
                )
            except AuthenticationError as error:
                connection.refuse(error.reason)
                return
            connection.state = principal
            self._handler.set_principal(connection, principal)
        self._handler.on_frame(connection, frame)

    def on_closed(self, connection: Connection) -> None:
        self._handler.on_closed(connection)
