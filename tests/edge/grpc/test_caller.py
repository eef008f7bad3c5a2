"""Certificates of clients that gRPC accepts, and that cannot be parsed."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from open_sessions import broker_with
from tls_world import TlsWorld

from moldau.api.entrance import Entrance
from moldau.api.session import Sessions
from moldau.edge.grpc.caller import certificate_of
from moldau.edge.grpc.calls import Calls


class Context:
    """A call of a client with this certificate."""

    def __init__(self, pem: bytes) -> None:
        self._pem = pem
        self.ended: tuple[grpc.StatusCode, str] | None = None

    def peer(self) -> str:
        return "ipv4:192.0.2.1:5000"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> dict[str, Sequence[bytes]]:
        return {"x509_pem_cert": [self._pem]}

    async def abort(self, code: grpc.StatusCode, text: str, trailers: object) -> None:
        self.ended = code, text


def test_a_certificate_names_the_client_and_its_end(tmp_path: Path) -> None:
    cert_file, _ = TlsWorld(tmp_path).client_files("alice")
    found = certificate_of(cast("Any", Context(Path(cert_file).read_bytes())))
    assert found is not None
    assert "CN=alice" in found.subject
    assert found.expires_at > 0


@pytest.mark.parametrize("how", ["of version 2", "no DER", "no PEM", "no text"])
async def test_a_certificate_that_cannot_be_parsed_is_refused_and_logged_once(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {
        "of version 2": Path(TlsWorld(tmp_path).odd_client_files()[0]).read_bytes(),
        "no DER": ssl.DER_cert_to_PEM_cert(b"no DER").encode(),
        "no PEM": b"no PEM",
        "no text": b"\xff",
    }[how]
    calls = Calls(Entrance(Sessions(broker_with()), authenticator=cast("Any", object())))
    for _ in range(3):
        context = Context(odd)
        with pytest.raises(RuntimeError, match="an aborted call continued"):
            await calls.admit(cast("Any", context))
        text = "Authentication failed: the client's certificate is not valid"
        assert context.ended == (grpc.StatusCode.UNAUTHENTICATED, text)
    (record,) = caplog.records
    assert record.getMessage().startswith("calls refused: the client's certificate is not valid: ")
