"""The way into a running cluster."""

import asyncio
import logging
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from tls_world import TlsWorld

from http_cluster import JOIN, SECRET, FakeCluster, served
from moldau.client.errors import ClientError
from moldau.log.os_filesystem import OsFiles
from moldau.log.secret_file import ClusterSecret, write_secret
from moldau.metadata.security import JoinToken
from moldau.model.errors import ConfigError, ErrorCode, RefusedError
from moldau.model.layout import SECRET_FILE
from moldau.model.topology import Endpoint, JoinChallenge, SealedJoinReply
from moldau.security.join_proof import hash_token
from moldau.server.cluster_secret import JoinKey, join_key
from moldau.server.join import join_cluster
from moldau.server.machine import Machine
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess


def join(port: int, *, seconds_max: float | None = None):
    return asyncio.run(joining_of(port, seconds_max or wait_seconds_max()))


def joining_of(port: int, seconds_max: float):
    address = Endpoint("127.0.0.1", port)
    return join_cluster(address, JOIN, JoinKey(SECRET), Machine(), seconds_max=seconds_max)


def test_a_broker_is_taken_in(caplog):
    caplog.set_level(logging.INFO)
    with served() as world:
        grant = join(world.port)
        reply = grant.reply
        assert grant.secret == SECRET
        assert world.cluster.asked == [JOIN]
        assert (reply.cluster_id, reply.broker_id, reply.epoch) == ("c", 2, 4)
        assert (reply.voters, reply.learners) == ((1,), (2,))
        assert reply.image == world.cluster.image
    assert "joined cluster c as broker 2" in caplog.text


def test_an_image_of_many_megabytes_arrives_whole():
    cluster = FakeCluster()
    cluster.image = bytes(range(256)) * 32 * 1024
    with served(cluster) as world:
        assert join(world.port).reply.image == cluster.image


def test_it_waits_for_a_cluster_without_a_leader(caplog):
    caplog.set_level(logging.INFO)
    cluster = FakeCluster()
    cluster.failure = RefusedError(ErrorCode.NOT_CONTROLLER, "no leader of the metadata group")
    with served(cluster) as world:

        async def scene() -> int:
            joining = asyncio.create_task(joining_of(world.port, wait_seconds_max()))
            await until(lambda: len(cluster.asked) >= 3 or joining.done(), "it asked three times")
            assert not joining.done()
            cluster.failure = None
            return int((await joining).reply.broker_id)

        assert asyncio.run(scene()) == 2
    # Once, and not for each of the tries.
    assert caplog.text.count("not joined yet") == 1


def test_it_waits_for_a_member_that_is_still_starting(caplog):
    caplog.set_level(logging.INFO)
    with socket.socket() as later:
        later.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        later.bind(("127.0.0.1", 0))
        later.settimeout(wait_seconds_max())
        port = later.getsockname()[1]

        async def scene() -> None:
            joining = asyncio.create_task(joining_of(port, wait_seconds_max()))
            await until(lambda: "not joined yet" in caplog.text, "it was turned away")
            assert not joining.done()
            later.listen()
            joining_reached = asyncio.to_thread(later.accept)
            sock, _ = await joining_reached
            sock.close()
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)
            # It may ask once more already, in a thread that would wait for an answer.
            later.close()

        asyncio.run(scene())


def test_a_refusal_ends_it_at_once_in_the_words_of_the_cluster():
    cluster = FakeCluster()
    cluster.failure = RefusedError(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION, "Broker id 2 belongs to another data directory"
    )
    with served(cluster) as world, pytest.raises(ConfigError) as caught:
        join(world.port)
    assert "Broker id 2 belongs to another data directory" in str(caught.value)
    assert f"127.0.0.1:{world.port}" in str(caught.value)
    assert caught.value.hint
    assert len(cluster.asked) == 1


def test_what_is_no_broker_ends_it_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            sock, _ = server.accept()
            with sock:
                # To its end, or hanging up would reset the connection, and the answer be lost.
                while not sock.recv(65536).endswith(b"\r\n\r\n"):
                    pass
                sock.sendall(b"HTTP/1.1 404 Not Found\r\n\r\nnothing here")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        with pytest.raises(ConfigError, match="not one of a Moldau broker"):
            join(server.getsockname()[1])
        thread.join(wait_seconds_max())


def test_it_gives_up_when_no_broker_responds():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConfigError, match="connection refused") as caught:
            join(bound.getsockname()[1], seconds_max=2)
    assert "join_addr" in str(caught.value)
    assert "http.addr" in caught.value.hint


def test_the_loop_goes_on_while_it_waits_and_it_can_be_cancelled():
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def scene() -> None:
            joining = asyncio.create_task(joining_of(silent.getsockname()[1], wait_seconds_max()))
            await until(lambda: select.select([silent], [], [], 0)[0], "it asks")
            joining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joining
            # Its thread would wait for an answer.
            silent.close()

        asyncio.run(scene())


# ---- by what a broker proves that it may join


def key_refused(cluster: FakeCluster, key: JoinKey | None) -> ConfigError:
    with served(cluster) as world, pytest.raises(ConfigError) as caught:
        asyncio.run(
            join_cluster(
                Endpoint("127.0.0.1", world.port),
                JOIN,
                key,
                Machine(),
                seconds_max=wait_seconds_max(),
            )
        )
    assert cluster.asked == []
    return caught.value


def test_another_secret_is_refused():
    error = key_refused(FakeCluster(), JoinKey(b"x" * 32))
    assert "does not know the secret of the cluster" in str(error)
    assert "moldau cluster token create" in error.hint


def test_a_member_that_does_not_have_the_new_secret_yet_gets_the_earlier_one_proved():
    key = join_key(ClusterSecret(b"n" * 32, SECRET))
    with served() as world:
        address = Endpoint("127.0.0.1", world.port)
        grant = asyncio.run(join_cluster(address, JOIN, key, Machine(), seconds_max=20))
        assert (grant.secret, world.cluster.asked) == (SECRET, [JOIN])
    error = key_refused(FakeCluster(), join_key(ClusterSecret(b"n" * 32, b"o" * 32)))
    assert "does not know the secret of the cluster" in str(error)


def test_without_a_key_it_is_said_how_to_get_one():
    error = key_refused(FakeCluster(), None)
    assert "needs a token" in str(error)
    assert "moldau cluster token create" in error.hint


def test_a_token_lets_a_broker_in_and_gives_it_the_secret():
    cluster = FakeCluster()
    secret = b"t" * 32
    cluster.tokens["one"] = JoinToken("one", hash_token(secret), 1 << 50)
    with served(cluster) as world:
        address = Endpoint("127.0.0.1", world.port)
        joining = join_cluster(address, JOIN, JoinKey(secret, "one"), Machine(), seconds_max=20)
        assert asyncio.run(joining).secret == SECRET
    assert (cluster.asked, cluster.tokens_used) == ([JOIN], ["one"])


@pytest.mark.parametrize(("token_id", "secret"), [("two", b"t" * 32), ("one", b"u" * 32)])
def test_a_token_that_is_unknown_or_wrong_is_refused(token_id, secret):
    cluster = FakeCluster()
    cluster.tokens["one"] = JoinToken("one", hash_token(b"t" * 32), 1 << 50)
    error = key_refused(cluster, JoinKey(secret, token_id))
    assert "The join token is unknown, used or expired" in str(error)


def test_a_member_on_this_machine_is_joined_by_who_may_read_its_secret(tmp_path):
    write_secret(OsFiles(tmp_path), ClusterSecret(SECRET))
    cluster = FakeCluster()
    cluster.secret_file = str(tmp_path / SECRET_FILE)
    with served(cluster) as world:
        address = Endpoint("127.0.0.1", world.port)
        grant = asyncio.run(join_cluster(address, JOIN, None, Machine(), seconds_max=20))
    assert grant.secret == SECRET


def test_a_member_that_does_not_know_the_key_cannot_pretend():
    class Pretender:
        async def join_challenge(self):
            return JoinChallenge(challenge=b"c" * 56)

        async def join(self, request):
            return SealedJoinReply(sealed=b"x" * 100)

    machine = Machine()
    machine.member = lambda address, seconds_max: Pretender()  # type: ignore[method-assign]
    address = Endpoint("127.0.0.1", 1)
    with pytest.raises(ConfigError, match="does not know the secret of the cluster"):
        asyncio.run(join_cluster(address, JOIN, JoinKey(SECRET), machine, seconds_max=20))


def test_a_member_with_tls_is_asked_with_tls_and_must_be_trusted(tmp_path):
    world = TlsWorld(tmp_path)
    contexts = world.contexts()
    answer = msgspec.json.encode(JoinChallenge(challenge=b"c"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = contexts.server.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            address = Endpoint("127.0.0.1", server.server_port)
            machine = Machine()
            machine.http_tls = contexts
            asked = asyncio.run(machine.member(address, wait_seconds_max()).join_challenge())
            assert asked.challenge == b"c"
            other = tmp_path / "other"
            other.mkdir()
            machine.http_tls = TlsWorld(other).contexts()
            with pytest.raises(ClientError, match="is not trusted"):
                asyncio.run(machine.member(address, wait_seconds_max()).join_challenge())
        finally:
            server.shutdown()
            thread.join(wait_seconds_max())
