"""Known class: what one server, connection or cluster has checked is believed by another."""

import base64
import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import grpc
import pytest
from chunks import joined
from peer_handshake import framed, peer_secret, told_by_peer
from secured_broker import (
    PASSWORDS,
    SECRET,
    TOPIC,
    ManyListeners,
    SecuredBroker,
    secured_broker,
)

from moldau.client.errors import ClientError
from moldau.client.sasl import Sasl
from moldau.client.security import Security
from moldau.model.errors import ErrorCode
from moldau.model.ids import BrokerId
from moldau.net.peers.handshake import CallerHandshake, Hello
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1 import queue_pb2_grpc as stubs
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max
from moldau.wire.framing import frame_request
from moldau.wire.messages.metadata import MetadataRequest
from moldau.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from moldau.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from raw_client import RawClient, batch

pytestmark = pytest.mark.system

RECORDS = f"/api/v1/topics/{TOPIC}/records"
UNKNOWN = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


class TwoDoors(SecuredBroker):
    """A listener for all mechanisms, and one for readers: SCRAM only, and read-only."""

    public_port: int


@pytest.fixture(scope="module")
def secured() -> Iterator[TwoDoors]:
    inside, public = free_ports(2)
    listeners = [
        {
            "name": "inside",
            "protocol": "kafka",
            "address": f"127.0.0.1:{inside}",
            "sasl": ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"],
        },
        {
            "name": "public",
            "protocol": "kafka",
            "address": f"127.0.0.1:{public}",
            "sasl": ["SCRAM-SHA-256"],
            "read_only": True,
        },
    ]
    settings = {"LISTENERS": json.dumps(listeners), "KAFKA__SASL_MECHANISMS": ""}
    with secured_broker(settings, ManyListeners) as started:
        doors = TwoDoors(started.broker)
        doors.public_port = public
        yield doors


@pytest.fixture(scope="module")
def other() -> Iterator[SecuredBroker]:
    """A broker of another cluster, with the same users and passwords."""
    settings = {"KAFKA__SASL_MECHANISMS": "PLAIN, OAUTHBEARER"}
    with secured_broker(settings) as started:
        yield started


def token_of(secured: SecuredBroker, who: str) -> str:
    body = {"user": who, "password": PASSWORDS[who]}
    status, _, text = secured.ask("nobody", "POST", "/api/v1/login", body)
    assert status == 200, text
    return str(json.loads(text)["token"])


def by_grpc(secured: SecuredBroker, authorization: dict[str, str]) -> grpc.StatusCode:
    with grpc.insecure_channel(secured.broker.grpc_address) as channel:
        return read_from(stubs.QueueStub(channel), authorization)


def read_from(stub: Any, authorization: dict[str, str]) -> grpc.StatusCode:
    metadata = tuple(authorization.items())
    try:
        call = stub.ReadFrom(
            pb.ReadFromRequest(topic=TOPIC), metadata=metadata, timeout=wait_seconds_max()
        )
        found = "".join(map(str, call))
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    assert SECRET in found
    return grpc.StatusCode.OK


def logs_in(secured: SecuredBroker, sasl: Sasl, port: int | None = None) -> bool:
    """Whether a Kafka client with these credentials is let in, and can read then."""
    broker = secured.broker
    try:
        client = RawClient(broker.host, port or broker.port, security=Security(sasl=sasl))
    except ClientError:
        return False
    with client:
        return client.fetch(TOPIC, 0).error_code == 0


# ---- one connection, several requests


def test_a_login_counts_for_one_request_of_http(secured):
    """The connection is kept; the right to read is not."""
    connection = HTTPConnection(secured.broker.http_address, timeout=wait_seconds_max())
    statuses = []
    try:
        for who in ("admin", "nobody", "reader", "nobody", "powerless", "admin"):
            connection.request("GET", RECORDS, headers=secured.authorization(who))
            response = connection.getresponse()
            statuses.append(response.status)
            assert (SECRET in response.read().decode()) == (response.status == 200)
    finally:
        connection.close()
    assert statuses == [200, 401, 200, 401, 403, 200]


def test_a_login_counts_for_one_request_of_a_pipeline(secured):
    host, port = secured.broker.http_address.split(":")

    def request(who: str) -> bytes:
        lines = [f"{name}: {value}\r\n" for name, value in secured.authorization(who).items()]
        return f"GET {RECORDS} HTTP/1.1\r\nhost: {host}:{port}\r\n{''.join(lines)}\r\n".encode()

    with socket.create_connection((host, int(port)), wait_seconds_max()) as client:
        client.sendall(request("admin") + request("nobody") + request("powerless"))
        received = b""
        while received.count(b"HTTP/1.1 ") < 3 and (more := client.recv(65536)):
            received += more
    assert re.findall(rb"HTTP/1\.1 (\d+)", received) == [b"200", b"401", b"403"]
    assert received.count(SECRET.encode()) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forwarded-user": "moldau-admin", "x-remote-user": "moldau-admin"},
        {"x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1", "x-real-ip": "10.0.0.1"},
        {"x-forwarded-client-cert": 'Subject="CN=admin"', "ssl-client-verify": "SUCCESS"},
        {"proxy-authorization": "Basic YWRtaW46YWRtaW4="},
        {"cookie": "session=admin; token=admin"},
        {"x-http-method-override": "GET", "x-original-url": "/healthz"},
    ],
)
def test_headers_that_a_proxy_could_have_set_prove_nothing(secured, headers):
    status, _, text = secured.ask("nobody", "GET", RECORDS, headers=headers)
    assert (status, SECRET in text) == (401, False)


def test_two_logins_of_one_request_are_none(secured):
    """Which of them counts would differ between a proxy and the broker."""
    host, port = secured.broker.http_address.split(":")
    both = "".join(
        f"authorization: {secured.authorization(who)['authorization']}\r\n"
        for who in ("powerless", "admin")
    )
    with socket.create_connection((host, int(port)), wait_seconds_max()) as client:
        head = f"GET {RECORDS} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n"
        client.sendall(f"{head}{both}\r\n".encode())
        received = b""
        while more := client.recv(65536):
            received += more
    assert received.split()[1] == b"401"
    assert SECRET.encode() not in received


def test_a_login_counts_for_one_call_of_grpc(secured):
    with grpc.insecure_channel(secured.broker.grpc_address) as channel:
        stub = stubs.QueueStub(channel)
        codes = [
            read_from(stub, secured.authorization(who))
            for who in ("reader", "nobody", "powerless", "admin", "nobody")
        ]
    assert codes == [grpc.StatusCode.OK, UNKNOWN, DENIED, grpc.StatusCode.OK, UNKNOWN]


def test_a_login_counts_for_one_connection_of_kafka(secured):
    with secured.kafka("admin") as admin:
        assert admin.fetch(TOPIC, 0).error_code == 0
        with (
            RawClient(secured.broker.host, secured.broker.port) as stranger,
            pytest.raises(ClientError),
        ):
            stranger.fetch(TOPIC, 0)
        with secured.kafka("powerless") as known:
            assert known.fetch(TOPIC, 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert admin.fetch(TOPIC, 0).error_code == 0


def test_an_exchange_begun_on_one_connection_does_not_end_on_another(secured):
    sasl = secured.security("reader", "SCRAM-SHA-256").sasl
    assert sasl is not None
    exchange = sasl.exchange()
    first = next(exchange)

    def begun() -> RawClient:
        client = RawClient(secured.broker.host, secured.broker.port)
        asked = SaslHandshakeRequest(mechanism="SCRAM-SHA-256")
        assert client.request(asked, SaslHandshakeResponse, 1).error_code == 0
        return client

    def step(client: RawClient, message: bytes) -> SaslAuthenticateResponse:
        asked = SaslAuthenticateRequest(auth_bytes=message)
        return client.request(asked, SaslAuthenticateResponse, 2)

    with begun() as one, begun() as two, begun() as three:
        final = exchange.send(bytes(step(one, first).auth_bytes))
        # Out of place, and after a first message of its own.
        assert step(three, final).error_code == FAILED
        assert step(two, first).error_code == 0
        assert step(two, final).error_code == FAILED
        # The check of this test: it fits where it belongs.
        assert step(one, final).error_code == 0


# ---- several servers


def test_a_token_is_worth_the_same_to_all_servers_and_no_more(secured):
    for who, http, rpc, reads in (
        ("reader", 200, grpc.StatusCode.OK, True),
        ("powerless", 403, DENIED, False),
    ):
        token = token_of(secured, who)
        bearer = {"authorization": f"Bearer {token}"}
        assert secured.ask("nobody", "GET", RECORDS, headers=bearer)[0] == http
        assert by_grpc(secured, bearer) is rpc
        assert logs_in(secured, Sasl(mechanism="OAUTHBEARER", password=token)) is reads
        # It is no password.
        for mechanism in ("PLAIN", "SCRAM-SHA-256"):
            assert not logs_in(secured, Sasl(mechanism=mechanism, username=who, password=token))


def test_a_token_of_another_cluster_is_worth_nothing(secured, other):
    for token in (token_of(other, "reader"), other.admin_token):
        bearer = {"authorization": f"Bearer {token}"}
        assert secured.ask("nobody", "GET", RECORDS, headers=bearer)[0] == 401
        assert by_grpc(secured, bearer) is UNKNOWN
        assert not logs_in(secured, Sasl(mechanism="OAUTHBEARER", password=token))
    # The check of this test: at home it opens.
    home = {"authorization": f"Bearer {token_of(other, 'reader')}"}
    assert other.ask("nobody", "GET", RECORDS, headers=home)[0] == 200


@pytest.mark.parametrize("name", ["moldau-admin", "moldau-admin ", "*"])
def test_no_password_of_a_user_is_that_of_a_reserved_name(secured, name):
    for password in (PASSWORDS["reader"], ""):
        pair = base64.b64encode(f"{name}:{password}".encode()).decode()
        headers = {"authorization": f"Basic {pair}"}
        assert secured.ask("nobody", "GET", RECORDS, headers=headers)[0] == 401
        assert not logs_in(secured, Sasl(mechanism="PLAIN", username=name, password=password))


def test_the_administrators_token_is_no_password_of_others(secured):
    for name in ("reader", "powerless", "root", ""):
        pair = base64.b64encode(f"{name}:{secured.admin_token}".encode()).decode()
        headers = {"authorization": f"Basic {pair}"}
        assert secured.ask("nobody", "GET", RECORDS, headers=headers)[0] == 401


def test_a_listener_has_its_own_mechanisms_and_limits(secured):
    """A login at the other one opens nothing here."""
    public, plain = (
        secured.public_port,
        Sasl(mechanism="PLAIN", username="reader", password=PASSWORDS["reader"]),
    )
    with secured.kafka("reader") as inside:
        assert inside.fetch(TOPIC, 0).error_code == 0
        assert not logs_in(secured, plain, public)
        token = token_of(secured, "reader")
        assert not logs_in(secured, Sasl(mechanism="OAUTHBEARER", password=token), public)
    scram = Sasl(mechanism="SCRAM-SHA-256", username="reader", password=PASSWORDS["reader"])
    assert logs_in(secured, scram, public)
    administrator = secured.security("admin", "SCRAM-SHA-256")
    with RawClient(secured.broker.host, public, security=administrator) as client:
        assert client.fetch(TOPIC, 0).error_code == 0
        # Read-only, for everyone.
        answer = client.produce(TOPIC, batch([b"from outside"]))
        assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_no_credentials_of_a_client_open_the_port_for_peers(secured):
    """Neither in the form of its own protocol, nor as the secret that peers prove."""
    bearer = secured.authorization("admin")["authorization"]
    frames = joined(
        chunk
        for request, version in (
            (SaslHandshakeRequest(mechanism="PLAIN"), 1),
            (
                SaslAuthenticateRequest(
                    auth_bytes=f"\0moldau-admin\0{secured.admin_token}".encode()
                ),
                2,
            ),
            (MetadataRequest(topics=None), 9),
        )
        for chunk in frame_request(request, version, 1, "test")
    )
    assert told_by_peer(secured.broker, frames) == b""
    http = f"GET {RECORDS} HTTP/1.1\r\nhost: localhost\r\nauthorization: {bearer}\r\n\r\n"
    assert told_by_peer(secured.broker, http.encode()) == b""
    identity = json.loads((secured.broker.data_dir / "broker.json").read_text())
    hello = Hello(identity["cluster_id"], BrokerId(2), "directory", BrokerId(1))
    for known in (secured.admin_token, token_of(secured, "reader"), PASSWORDS["reader"]):
        key = known.encode()[:32].ljust(32, b"\0")
        caller = CallerHandshake(peer_secret(key), hello)
        assert told_by_peer(secured.broker, framed(caller.hello)) == b""
