"""Certificates in files, and contexts of clients that trust them."""

import os
import ssl
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from secure_front import Identity, identity

from moldau.net.tls.contexts import TlsContexts, TlsFiles

LOCAL = ("localhost", "127.0.0.1")


class TlsWorld:
    """An authority, and what it has signed, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = identity("authority")
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_text(self.authority.pem)
        self.cert_file = folder / "broker.pem"
        self.key_file = folder / "broker.key"
        self.renew()

    def renew(
        self,
        *,
        hosts: tuple[str, ...] = LOCAL,
        signer: Identity | None = None,
        begins_in: timedelta = timedelta(days=-1),
        expires_in: timedelta = timedelta(days=1),
    ) -> Identity:
        """Replace the broker's certificate, as tools do it: a new file takes the name."""
        made = identity(
            "broker",
            hosts=hosts,
            signer=signer or self.authority,
            begins_in=begins_in,
            expires_in=expires_in,
        )
        self.install(made.pem, made.key_pem)
        return made

    def install(self, pem: str, key_pem: str) -> None:
        for path, text in ((self.key_file, key_pem), (self.cert_file, pem)):
            new = path.with_suffix(".new")
            new.write_text(text)
            new.chmod(0o600)
            os.replace(new, path)

    def files(self, *, mtls: bool = False) -> TlsFiles:
        return TlsFiles(
            cert_file=str(self.cert_file),
            key_file=str(self.key_file),
            ca_file=str(self.ca_file),
            requires_client=mtls,
        )

    def contexts(self, *, mtls: bool = False) -> TlsContexts:
        return TlsContexts(self.files(mtls=mtls))

    def client_files(
        self,
        name: str = "alice",
        signer: Identity | None = None,
        expires_in: timedelta = timedelta(days=1),
    ) -> tuple[str, str]:
        """Certificate and key of a client."""
        made = identity(name, signer=signer or self.authority, expires_in=expires_in)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_text(made.pem)
        key.write_text(made.key_pem)
        return str(cert), str(key)

    def odd_client_files(self) -> tuple[str, str]:
        """The same for a certificate that OpenSSL accepts, and `cryptography` cannot parse: it
        says that it is of version 2."""
        cert_file, key_file = self.client_files("odd")
        made = x509.load_pem_x509_certificate(Path(cert_file).read_bytes())
        version_3, version_2 = bytes.fromhex("a003020102"), bytes.fromhex("a003020101")
        body = made.tbs_certificate_bytes
        assert body.index(version_3) < 10
        body = body.replace(version_3, version_2, 1)
        signature = self.authority.private_key.sign(body, ec.ECDSA(hashes.SHA256()))
        ecdsa_with_sha256 = bytes.fromhex("300a06082a8648ce3d040302")
        content = body + ecdsa_with_sha256 + bytes([3, len(signature) + 1, 0]) + signature
        whole = b"\x30\x82" + len(content).to_bytes(2, "big") + content
        Path(cert_file).write_text(ssl.DER_cert_to_PEM_cert(whole))
        return cert_file, key_file

    def client(self, pair: tuple[str, str] | None = None) -> ssl.SSLContext:
        """A context that trusts the authority, with a certificate if given."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if pair is not None:
            context.load_cert_chain(*pair)
        return context
