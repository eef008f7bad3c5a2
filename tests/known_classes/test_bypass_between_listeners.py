"""Known class: a TLS session of a listener without client certificates opens one that needs them.

A session that is resumed skips the certificate. It must be known to no other listener, though both
have the same certificate and process.
"""

import json
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

import pytest
from chunks import joined
from secured_broker import ManyListeners
from tls_world import TlsWorld

from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.framing import frame_request
from moldau.wire.messages.metadata import MetadataRequest

pytestmark = pytest.mark.system

ASKED = joined(frame_request(MetadataRequest(topics=None), 9, 1, "test"))


class Talk(NamedTuple):
    """How a connection went: its session, and whether the broker knew it and answered."""

    session: ssl.SSLSession | None = None
    is_resumed: bool = False
    is_answered: bool = False


def talk(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> Talk:
    with socket.create_connection(("127.0.0.1", port), wait_seconds_max()) as opened:
        try:
            client = context.wrap_socket(opened, server_hostname="127.0.0.1", session=session)
            client.sendall(ASKED)
            answer = client.recv(1)
            return Talk(client.session, bool(client.session_reused), bool(answer))
        except OSError:
            return Talk()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_of_one_listener_does_not_open_another(version, tmp_path: Path):
    world = TlsWorld(tmp_path)
    free, guarded = free_ports(2)
    listeners = [
        {"name": name, "protocol": "kafka", "address": f"127.0.0.1:{port}", "security": security}
        for name, port, security in (("free", free, "tls"), ("guarded", guarded, "mtls"))
    ]
    settings = {
        "LISTENERS": json.dumps(listeners),
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
        "SECURITY__CLIENT_CA_FILE": str(world.ca_file),
    }
    with ManyListeners(data_dir=tmp_path / "data", settings=settings):
        stranger, known = world.client(), world.client(world.client_files())
        for context in (stranger, known):
            context.minimum_version = context.maximum_version = version
        first = talk(free, stranger)
        again = talk(free, stranger, first.session)
        assert (first.is_answered, again.is_answered) == (True, True)
        # The check of this test: a session of TLS 1.2 is resumed where it began.
        assert again.is_resumed == (version is ssl.TLSVersion.TLSv1_2)
        assert talk(guarded, stranger, first.session) == Talk()
        assert talk(guarded, known).is_answered
