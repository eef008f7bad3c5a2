"""Polling a cluster whose brokers come and go, against stand-ins that answer over HTTP."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from moldau.cli.errors import CommandError
from moldau.cli.top.compute import compute
from moldau.cli.top.poller import Poller
from moldau.client.errors import UnreachableError
from moldau.client.security import PLAIN_TEXT
from moldau.model.topology import Endpoint, Topology, TopologyBroker

pytestmark = pytest.mark.inprocess


class StandIn:
    """A broker: the topology, and a counter that grows by 100 with each scrape."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.topology: Topology | None = None
        self.written = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    outer.written += 100
                    body = f"moldau_written_bytes_total {outer.written}\n".encode()
                    kind = "text/plain; version=0.0.4"
                else:
                    body, kind = msgspec.json.encode(outer.topology), "application/json"
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self._handler = Handler
        self._serve(0)

    def _serve(self, port: int) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self._handler)
        self.http = Endpoint("127.0.0.1", self.server.server_port)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def restart(self) -> None:
        self.written = 0
        self._serve(self.http.port)


@pytest.fixture
def brokers():
    made = [StandIn(number) for number in (1, 2)]
    for each in made:
        each.topology = topology(made, answered_by=each.number)
    yield made
    for each in made:
        each.stop()


def topology(brokers: list[StandIn], *, answered_by: int, cluster_id: str = "C") -> Topology:
    return Topology(
        cluster_id=cluster_id,
        version=1,
        controller=1,
        answered_by=answered_by,
        brokers=tuple(
            TopologyBroker(
                id=each.number,
                kafka=Endpoint("127.0.0.1", 1),
                http=each.http,
                alive=True,
                epoch=1,
                leaders=0,
                replicas=0,
                is_controller=each.number == 1,
            )
            for each in brokers
        ),
        topics=(),
    )


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_brokers_that_die_and_return_cost_the_others_nothing(brokers):
    clock = Clock()
    poller = Poller([str(brokers[0].http)], PLAIN_TEXT, clock=clock)
    assert compute(poller.start()).written_bytes is None, "one scrape has no rate"
    clock.now = 2.0
    assert compute(poller.poll()).written_bytes == 100.0

    # The controller, which is also the address that was given.
    brokers[0].stop()
    clock.now = 4.0
    found = compute(poller.poll())
    assert found.health == "degraded"
    assert "broker 1 does not respond over HTTP" in found.summary
    assert "connection refused" in found.summary
    assert [each.written_bytes for each in found.brokers] == [None, 50.0]

    brokers[0].restart()
    clock.now = 6.0
    found = compute(poller.poll())
    assert found.health == "healthy"
    assert [each.written_bytes for each in found.brokers] == [None, 50.0], "it has just returned"
    clock.now = 8.0
    assert compute(poller.poll()).written_bytes == 100.0


def test_all_may_be_away_for_a_while(brokers):
    clock = Clock()
    poller = Poller([str(brokers[0].http)], PLAIN_TEXT, clock=clock)
    poller.start()
    for each in brokers:
        each.stop()
    clock.now = 12.0
    found = compute(poller.poll())
    assert found.health == "unreachable"
    assert found.summary == "no broker has responded for 12 s; 2 brokers tried"
    for each in brokers:
        each.restart()
    assert compute(poller.poll()).health == "healthy"


def test_a_broker_is_reached_where_it_was_given_if_it_advertises_another_address(brokers, nobody):
    host, _, port = nobody.rpartition(":")
    reached = brokers[0].http
    brokers[0].http = Endpoint(host, int(port))
    brokers[0].topology = topology(brokers[:1], answered_by=1)
    found = compute(Poller([str(reached)], PLAIN_TEXT).start())
    assert (found.health, found.brokers_responding) == ("healthy", 1)


def test_without_any_broker_or_with_two_clusters_it_does_not_start(brokers, nobody):
    with pytest.raises(UnreachableError, match="connection refused"):
        Poller([nobody], PLAIN_TEXT).start()
    brokers[1].topology = topology(brokers, answered_by=2, cluster_id="D")
    with pytest.raises(CommandError, match="belong to 2 clusters"):
        Poller([str(each.http) for each in brokers], PLAIN_TEXT).start()
