"""What gRPC knows of the client of a call: its address, what it says, and its certificate."""

import logging
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from moldau.model import log_events as events
from moldau.net.tls.contexts import PeerCertificate, parse_certificate
from moldau.security.sasl import AuthenticationError

if TYPE_CHECKING:
    from grpc import aio

    Context = aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

_AUTHORIZATION: Final = "authorization"
_CERTIFICATE: Final = "x509_pem_cert"
_NOT_VALID: Final = "Authentication failed: the client's certificate is not valid"


def host_of(context: "Context") -> str:
    """The address of the client; empty if it has none."""
    return _host(context.peer())


@lru_cache(maxsize=1024)
def _host(peer: str) -> str:
    """Of all calls of a connection, the same."""
    scheme, _, rest = unquote(peer).partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return ""
    return rest.rpartition(":")[0].strip("[]")


def authorization_of(context: "Context") -> list[str]:
    """The values of the metadata key of that name."""
    return [
        value if isinstance(value, str) else value.decode("latin-1")
        for name, value in context.invocation_metadata() or ()
        if name == _AUTHORIZATION
    ]


def certificate_of(context: "Context") -> PeerCertificate | None:
    """The certificate that gRPC has verified; None: there is none. Raises AuthenticationError."""
    found = next(iter(context.auth_context().get(_CERTIFICATE, ())), None)
    if found is None:
        return None
    certificate = _certificate(found)
    if certificate is None:
        raise AuthenticationError(_NOT_VALID)
    return certificate


@lru_cache(maxsize=1024)
def _certificate(pem: bytes) -> PeerCertificate | None:
    """None: gRPC accepts it, but it cannot be parsed. That is logged once, not for each call."""
    try:
        return parse_certificate(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")))
    except ValueError as error:
        log.warning(
            "calls refused: the client's certificate is not valid: %s",
            error,
            extra=events.CLIENT_CERTIFICATE_INVALID(),
        )
        return None
