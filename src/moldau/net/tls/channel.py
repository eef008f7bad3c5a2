"""TLS over memory: encrypts and decrypts, and leaves the socket to its user.

OpenSSL on the socket itself would need two system calls for each record of 16 KiB, and asyncio's
TLS copies all data twice more: decision 47 has the figures.
"""

import contextlib
import ssl
from typing import Final

from moldau.net.tls.contexts import PeerCertificate, peer_certificate

PIECE_BYTES: Final = 64 * 1024
"""Data goes through OpenSSL in pieces of this size: it keeps buffers as large as the largest."""

HANDSHAKE_RECORD: Final = 0x16
"""The first byte of TLS. No Kafka request begins so: it would have 350 MB."""


class TlsFailedError(OSError):
    """The other side is not trusted, or does not trust this one."""


class TlsChannel:
    """One connection as OpenSSL sees it."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "_write", "read")

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool = True, host: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=host
        )
        self._write = self._tls.write
        self.read = self._tls.read
        """`read(size, buffer)` decrypts one record at most; raises SSLWantReadError, returns 0
        at the end."""

    def handshake(self) -> bool:
        """Continue the handshake; True if it is complete. Raises SSLError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def feed(self, received: memoryview | bytes) -> None:
        """Add data from the socket."""
        self._incoming.write(received)

    @property
    def has_input(self) -> bool:
        """Whether there is data from the socket that was not decrypted."""
        return bool(self._incoming.pending or self._tls.pending())

    @property
    def input_bytes(self) -> int:
        return self._incoming.pending

    @property
    def has_output(self) -> bool:
        return bool(self._outgoing.pending)

    def output(self) -> bytes:
        """Data for the socket."""
        return self._outgoing.read()

    def seal(self, data: bytes | bytearray | memoryview) -> bytes:
        """Encrypt; the result is for the socket. Raises SSLError."""
        written = self._write(data)
        if written < len(data):
            rest = memoryview(data)
            while written < len(data):
                written += self._write(rest[written:])
        return self._outgoing.read()

    def goodbye(self) -> bytes:
        """The message that ends TLS: the other side knows that nothing was cut off."""
        # Raises because it would wait for the goodbye of the other side.
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        return self._outgoing.read()

    @property
    def version(self) -> str | None:
        return self._tls.version()

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        return peer_certificate(self._tls)


def describe(error: ssl.SSLError) -> str:
    """Why a handshake failed, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    reason = (error.reason or "").lower().replace("_", " ")
    return _REASONS.get(error.reason or "", reason or "protocol error")


_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has sent no certificate",
    "UNSUPPORTED_PROTOCOL": "the client has no TLS 1.2 or newer",
    "NO_SHARED_CIPHER": "the client has no cipher that is allowed here",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the certificate of this broker; "
    "its CA file must have the issuer",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the certificate of this broker",
    # The same alert for another host name, and for one that is not valid yet.
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the certificate of this broker; "
    "check its names and dates: moldau doctor",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of this broker has expired",
}
