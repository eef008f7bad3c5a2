"""TLS of the gRPC server, which has a TLS library of its own: it asks for new certificates."""

import logging

import grpc

from moldau.model import log_events as events
from moldau.model.errors import ConfigError
from moldau.net.tls.contexts import TlsContexts

log = logging.getLogger(__name__)


def server_credentials(tls: TlsContexts) -> grpc.ServerCredentials:
    """Raises ConfigError."""
    given = tls.loaded_total
    first = _configuration(tls)

    def newest() -> grpc.ServerCertificateConfiguration | None:
        """Called before each handshake, in a thread of gRPC; None: as before."""
        nonlocal given
        loaded = tls.loaded_total
        if loaded == given:
            return None
        try:
            found = _configuration(tls)
        except ConfigError as error:
            log.error(
                "new certificate not used by gRPC, the old one stays: %s",
                error,
                extra=events.CERTIFICATE_NOT_LOADED(),
            )
            found = None
        given = loaded
        return found

    return grpc.dynamic_ssl_server_credentials(
        first,
        newest,  # type: ignore[arg-type]
        require_client_authentication=tls.files.requires_client,
    )


def _configuration(tls: TlsContexts) -> grpc.ServerCertificateConfiguration:
    key, certificate, authority = tls.pem()
    return grpc.ssl_server_certificate_configuration(
        [(key, certificate)], root_certificates=authority if tls.files.requires_client else None
    )
