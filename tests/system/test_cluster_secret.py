"""Unknown clients at the port for peers and at the way into a cluster, with real processes."""

import base64
import json
import secrets
import shutil
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from moldau_command import run_moldau
from peer_handshake import framed, peer_secret, receive_framed, told_by_peer
from secured_broker import admin_token
from tls_world import TlsWorld

from moldau.client.wire.client import KafkaClient
from moldau.log.secret_file import ClusterSecret, decode_secret
from moldau.model.ids import BrokerId, Offset, TimestampMs
from moldau.model.layout import SECRET_FILE
from moldau.net.peers.handshake import CallerHandshake, Hello
from moldau.records.record import Record, build_batch
from moldau.server.admin_token import make_token
from moldau.testing.broker import Broker, BrokerFailedError
from moldau.testing.cluster import Cluster, ClusterBroker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


def secret_of(broker: Broker) -> bytes:
    return decode_secret((broker.data_dir / SECRET_FILE).read_bytes()).value


def test_the_port_for_peers_answers_nothing_to_unknown_clients() -> None:
    with Cluster(2) as cluster:
        first = cluster.brokers[1]
        topology = cluster.topology()
        known = next(entry for entry in topology["brokers"] if entry["id"] == 2)
        identity = json.loads((cluster.brokers[2].data_dir / "broker.json").read_text())
        hello = Hello(
            topology["cluster_id"],
            BrokerId(2),
            identity["directory_id"],
            BrokerId(1),
            known["epoch"] + 1,
        )
        # All that can be known of a broker without the secret, but the secret.
        guess = peer_secret(secrets.token_bytes(32))
        for message in (
            framed(CallerHandshake(guess, hello).hello),
            framed(b"MoPr" + bytes(60)),
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            secrets.token_bytes(300),
        ):
            assert told_by_peer(first, message) == b""
        # With the secret, as a check of this test: it is answered.
        true = peer_secret(secret_of(first))
        caller = CallerHandshake(true, hello._replace(sender=BrokerId(9)))
        with socket.create_connection(("127.0.0.1", first.raft_port), wait_seconds_max()) as peer:
            peer.sendall(framed(caller.hello))
            challenge = receive_framed(peer)
            peer.sendall(framed(caller.prove(challenge)))
            assert "not registered" in caller.read_response(receive_framed(peer)).reason
        assert first.output.count("does not know the secret of this cluster") == 1
        cluster.wait_ready()


def test_a_recorded_handshake_is_refused_when_it_is_played_again() -> None:
    with Broker() as broker:
        true = peer_secret(secret_of(broker))
        identity = json.loads((broker.data_dir / "broker.json").read_text())
        hello = Hello(identity["cluster_id"], BrokerId(2), "dir", BrokerId(1))
        caller = CallerHandshake(true, hello)
        with socket.create_connection(("127.0.0.1", broker.raft_port), wait_seconds_max()) as peer:
            peer.sendall(framed(caller.hello))
            challenge = receive_framed(peer)
            proof = caller.prove(challenge)
            peer.sendall(framed(proof))
            assert caller.read_response(receive_framed(peer)).reason
        with socket.create_connection(("127.0.0.1", broker.raft_port), wait_seconds_max()) as peer:
            peer.sendall(framed(caller.hello))
            assert receive_framed(peer) != challenge
            peer.sendall(framed(proof))
            assert peer.recv(4096) == b""


def test_joining_gives_nothing_to_unknown_clients() -> None:
    with Broker() as broker:
        url = f"http://{broker.http_address}/api/v1/cluster/join"

        def ask(body: bytes) -> tuple[int, bytes]:
            request = urllib.request.Request(
                url, data=body, headers={"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=wait_seconds_max()) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        with urllib.request.urlopen(f"{url}/challenge", timeout=wait_seconds_max()) as answer:
            offered = json.load(answer)
        wanted = {
            "incarnation": "d",
            "process": "p",
            "kafka": ["h", 1],
            "raft": ["h", 2],
            "http": ["h", 3],
        }
        text = base64.b64encode(json.dumps(wanted).encode()).decode()
        random = base64.b64encode(secrets.token_bytes(32)).decode()
        proven = {"request": text, "nonce": random, "proof": random, **offered}
        bodies = (wanted, proven, {**proven, "token_id": "x"}, {**proven, "challenge": random})
        for body in bodies:
            status, reply = ask(json.dumps(body).encode())
            assert status >= 400
            assert b"image" not in reply
            assert secret_of(broker).hex().encode() not in reply
        with urllib.request.urlopen(
            f"http://{broker.http_address}/api/v1/topology", timeout=wait_seconds_max()
        ) as answer:
            assert len(json.load(answer)["brokers"]) == 1


def run_cli(broker: Broker, *arguments: str) -> str:
    return run_moldau(*arguments, "--http", broker.http_address)


def joining(first: Broker, number: int, directory: Path, token: Path) -> ClusterBroker:
    return ClusterBroker(
        number=number,
        data_dir=directory,
        settings={"JOIN_TOKEN_FILE": str(token)},
        join=first.http_address,
    )


def test_a_token_lets_one_broker_in_and_no_other(tmp_path: Path) -> None:
    with Broker() as first:
        token = tmp_path / "token"
        token.write_text(run_cli(first, "cluster", "token", "create"))
        second = joining(first, 2, tmp_path / "2", token)
        with second:
            assert secret_of(second) == secret_of(first)
            listed = json.loads(run_cli(first, "cluster", "token", "list", "-o", "json"))
            assert [one["state"] for one in listed] == ["used"]
            third = joining(first, 3, tmp_path / "3", token)
            with pytest.raises(BrokerFailedError, match="unknown, used or expired"):
                third.start()
            assert not (third.data_dir / SECRET_FILE).exists()
            # It is a member now: it returns by the secret, also without its file of the token.
            second.stop()
            token.unlink()
            second.start()
        for text in (first.output, second.output, third.output):
            assert secret_of(first).hex() not in text


def test_a_token_that_expired_or_was_deleted_lets_nobody_in(tmp_path: Path) -> None:
    with Broker() as first:
        expired, deleted = tmp_path / "expired", tmp_path / "deleted"
        expired.write_text(run_cli(first, "cluster", "token", "create", "--expires", "1ms"))
        deleted.write_text(run_cli(first, "cluster", "token", "create"))
        run_cli(first, "cluster", "token", "delete", deleted.read_text().partition(".")[0])
        for number, token in ((2, expired), (3, deleted)):
            broker = joining(first, number, tmp_path / str(number), token)
            with pytest.raises(BrokerFailedError, match="unknown, used or expired"):
                broker.start()


def test_a_broker_with_the_secret_of_another_cluster_is_not_let_in(tmp_path: Path) -> None:
    with Broker() as first, Broker() as other:
        second = ClusterBroker(
            number=2, data_dir=tmp_path / "2", settings={}, join=first.http_address
        )
        second.data_dir.mkdir()
        shutil.copy(other.data_dir / SECRET_FILE, second.data_dir / SECRET_FILE)
        with pytest.raises(BrokerFailedError, match="does not know the secret of the cluster"):
            second.start()


def test_a_member_whose_secret_was_changed_takes_part_no_more(tmp_path: Path) -> None:
    with Cluster(3) as cluster:
        third = cluster.brokers[3]
        third.stop()
        true = (third.data_dir / SECRET_FILE).read_bytes()
        with Broker() as other:
            shutil.copy(other.data_dir / SECRET_FILE, third.data_dir / SECRET_FILE)
        third.launch()
        wait_until(
            lambda: "closes the connections of this broker without an answer" in third.output,
            "it is told",
        )
        alive = {entry["id"] for entry in cluster.topology()["brokers"] if entry["alive"]}
        assert 3 not in alive
        third.kill()
        (third.data_dir / SECRET_FILE).write_bytes(true)
        third.start()
        cluster.wait_ready()


def test_the_secret_is_changed_while_the_cluster_serves() -> None:
    with Cluster(3) as cluster:
        brokers = [cluster.brokers[number] for number in (1, 2, 3)]
        old = secret_of(brokers[0])
        batch = build_batch([Record(Offset(0), TimestampMs(1), None, b"v", [])])
        with KafkaClient(cluster.bootstrap, timeout=wait_seconds_max()) as client:
            client.create_topic("t", replication_factor=3)
        written = 0
        for step in ([], ["--finish"]):
            command = ["cluster", "secret", "rotate", *step]
            directories = [str(broker.data_dir) for broker in brokers]
            run_moldau(*command, *directories)
            for broker in brokers:
                broker.stop()
                broker.start()
                # All three: those with the new file and those without talk to each other.
                cluster.wait_ready()
                with KafkaClient(cluster.bootstrap, timeout=wait_seconds_max()) as client:
                    client.produce("t", 0, batch)
                    written += 1
                    assert client.list_offset("t", 0) == written
        assert secret_of(brokers[0]) != old
        for broker in brokers:
            # The local administrator changes with the secret.
            assert admin_token(broker) == make_token(secret_of(brokers[0]))
            content = (broker.data_dir / SECRET_FILE).read_bytes()
            assert decode_secret(content) == ClusterSecret(secret_of(brokers[0]))
            hello = Hello("c", BrokerId(1), "d", BrokerId(2))
            caller = CallerHandshake(peer_secret(old), hello)
            assert told_by_peer(broker, framed(caller.hello)) == b""


def test_three_brokers_run_with_certificates_between_them(tmp_path: Path) -> None:
    world = TlsWorld(tmp_path)
    settings = {
        "RAFT__SECURITY": "mtls",
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
        "SECURITY__CLIENT_CA_FILE": str(world.ca_file),
    }
    with Cluster(3, settings=settings) as cluster:
        with KafkaClient(cluster.bootstrap, timeout=wait_seconds_max()) as client:
            client.create_topic("t", replication_factor=3)
            batch = build_batch([Record(Offset(0), TimestampMs(1), None, b"v" * 500_000, [])])
            for _ in range(3):
                client.produce("t", 0, batch)
        leader = cluster.leader("t", 0)
        leader.kill()
        leader.start()
        cluster.wait_ready()
        with KafkaClient(cluster.bootstrap, timeout=wait_seconds_max()) as client:
            assert client.list_offset("t", 0) == 3
        # Neither plain text nor TLS without a certificate is answered.
        assert told_by_peer(cluster.brokers[1], framed(b"x" * 100)) == b""
        context = ssl.create_default_context(cafile=str(world.ca_file))
        address = ("127.0.0.1", cluster.brokers[1].raft_port)
        with socket.create_connection(address, wait_seconds_max()) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
                    secured.sendall(framed(b"x" * 100))
                    assert secured.recv(4096) == b""
            except (ssl.SSLError, ConnectionResetError):
                pass


def test_brokers_join_and_return_where_http_asks_for_users_and_tls(tmp_path: Path) -> None:
    world = TlsWorld(tmp_path)
    settings = {
        "RAFT__SECURITY": "mtls",
        "HTTP__SECURITY": "tls",
        "HTTP__AUTHENTICATION": "users",
        "SECURITY__CERT_FILE": str(world.cert_file),
        "SECURITY__KEY_FILE": str(world.key_file),
        "SECURITY__CLIENT_CA_FILE": str(world.ca_file),
    }
    with Broker(settings=settings) as first:
        second = ClusterBroker(
            number=2, data_dir=tmp_path / "2", settings=settings, join=first.http_address
        )
        with second:
            assert secret_of(second) == secret_of(first)
            second.kill()
            second.start()
        url = f"https://{first.http_address}/api/v1/cluster/"
        context = ssl.create_default_context(cafile=str(world.ca_file))

        def ask(path: str) -> int:
            try:
                answer = urllib.request.urlopen(
                    url + path, timeout=wait_seconds_max(), context=context
                )
            except urllib.error.HTTPError as error:
                return error.code
            with answer:
                return int(answer.status)

        # A broker needs no user to prove itself, and nobody else gets further.
        assert ask("join/challenge") == 200
        assert ask("tokens") == 401


def test_secrets_are_in_their_files_and_nowhere_else(tmp_path: Path) -> None:
    with Broker() as first:
        token = tmp_path / "token"
        token.write_text(run_cli(first, "cluster", "token", "create"))
        second = joining(first, 2, tmp_path / "2", token)
        with second:
            answers = b""
            for path in ("/", "/metrics", "/api/v1/topology", "/api/v1/cluster/tokens"):
                address = f"http://{first.http_address}{path}"
                with urllib.request.urlopen(address, timeout=wait_seconds_max()) as answer:
                    answers += answer.read()
            arguments = Path(f"/proc/{second.pid}/cmdline").read_bytes()
        secret = secret_of(first)
        key = token.read_text().strip().partition(".")[2].encode()
        planted = (secret, secret.hex().encode(), base64.b64encode(secret), key)
        places = {
            "answers": answers,
            "arguments": arguments,
            "log of 1": first.output.encode(),
            "log of 2": second.output.encode(),
        }
        for broker in (first, second):
            files = [path for path in broker.data_dir.rglob("*") if path.is_file()]
            assert any("metadata" in str(path) for path in files)
            places |= {str(path): path.read_bytes() for path in files if path.name != SECRET_FILE}
        found = [name for name, content in places.items() if any(x in content for x in planted)]
        assert found == []
