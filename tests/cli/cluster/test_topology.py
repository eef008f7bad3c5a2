"""Commands that ask over HTTP, against a stand-in that answers with a made-up topology."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from moldau.cli.check_result import CheckStatus
from moldau.cli.cluster.problems import problems
from moldau.cli.cluster.topology import behind, shared_machines, single_copies
from moldau.cli.doctor import check_cluster
from moldau.cli.errors import ExitCode
from moldau.model.cluster_problems import Problem
from moldau.model.topology import (
    Endpoint,
    Topology,
    TopologyBroker,
    TopologyPartition,
    TopologyTopic,
)

pytestmark = pytest.mark.inprocess


def broker(number: int, **fields) -> TopologyBroker:
    given: dict[str, Any] = {
        "id": number,
        "kafka": Endpoint("127.0.0.1", 9091 + number),
        "alive": True,
        "epoch": 1,
        "leaders": 0,
        "replicas": 2,
    }
    return TopologyBroker(**(given | fields))


def part(number: int, replicas, in_sync=None, leader=None) -> TopologyPartition:
    return TopologyPartition(
        partition=number,
        leader=replicas[0] if leader is None else leader,
        leader_epoch=1,
        replicas=tuple(replicas),
        in_sync=tuple(replicas if in_sync is None else in_sync),
    )


def topology(brokers, parts=(), **fields) -> Topology:
    topic = TopologyTopic(name="orders", id="0" * 32, partitions=tuple(parts))
    given: dict[str, Any] = {
        "cluster_id": "C",
        "version": 1,
        "controller": 1,
        "answered_by": 1,
        "brokers": tuple(brokers),
        "topics": (topic,),
    }
    return Topology(**(given | fields))


class StandIn:
    """Answers with the topologies in turn, the last one for ever; remembers what was asked."""

    def __init__(self) -> None:
        self.answers: list[Topology] = []
        self.posts: list[tuple[str, object]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                one = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                self._reply(200, msgspec.json.encode(one))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.posts.append((self.path, body))
                self._reply(
                    202, json.dumps({"broker": body["broker"], "state": "draining"}).encode()
                )

            def _reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.endpoint = Endpoint("127.0.0.1", self.server.server_port)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def stand_in():
    made = StandIn()
    yield made
    made.server.shutdown()
    made.server.server_close()


THREE = [part(0, [1, 2, 3]), part(1, [2, 3, 1])]


def test_brokers_are_listed_and_the_cluster_summed_up(cli, stand_in):
    stand_in.answers = [topology([broker(1, is_controller=True), broker(2), broker(3)], THREE)]
    outcome = cli("broker", "list", "--http", stand_in.address)
    assert outcome.code == 0
    assert outcome.out.splitlines()[1].split()[:6] == ["1", "active", "yes", "yes", "0", "2"]
    assert "3 of 3 brokers alive, controller 1; 2 partitions, 0 under-replicated" in outcome.err
    assert cli("broker", "list", "-o", "name", "--http", stand_in.address).out == "1\n2\n3\n"


def test_the_address_may_come_from_the_environment(cli, stand_in, monkeypatch, nobody):
    stand_in.answers = [topology([broker(1)])]
    monkeypatch.setenv("MOLDAU_HTTP", f"{nobody},{stand_in.address}")
    assert cli("broker", "list", "-o", "name").out == "1\n"


def test_an_unreachable_cluster_is_reported(cli, nobody):
    outcome = cli("broker", "list", "--http", nobody)
    assert outcome.code == ExitCode.UNREACHABLE
    assert outcome.err.startswith(f"error: cannot reach {nobody} (connection refused)\nhint: ")


def test_a_broker_that_is_behind_or_complains_fails_its_status(cli, stand_in, monkeypatch):
    told: list[Problem] = []
    monkeypatch.setattr("moldau.cli.broker.broker_problems", lambda topology, only: told)
    parts = [part(0, [1, 2]), part(1, [2, 1], in_sync=[2])]
    stand_in.answers = [topology([broker(1), broker(2)], parts)]
    outcome = cli("broker", "status", 1, "-o", "json", "--http", stand_in.address)
    assert outcome.code == ExitCode.FAILED
    document = json.loads(outcome.out)
    assert document["behind"] == 1
    assert [(one["role"], one["in_sync"]) for one in document["partitions"]] == [
        ("leader", True),
        ("follower", False),
    ]
    assert cli("broker", "status", 2, "--http", stand_in.address).code == 0
    told.append(Problem("broker 2: the disk is full", "make room"))
    outcome = cli("broker", "status", 2, "--http", stand_in.address)
    assert (outcome.code, outcome.err) == (
        ExitCode.FAILED,
        "problem: broker 2: the disk is full\nremedy:  make room\n",
    )


def test_a_cluster_that_is_not_well_fails_its_status(cli, stand_in, monkeypatch):
    # The brokers of the stand-in are nowhere; test_well_being.py asks real ones.
    monkeypatch.setattr("moldau.cli.broker.broker_problems", lambda topology: [])
    stand_in.answers = [topology([broker(1), broker(2)], [part(0, [1, 2])])]
    assert cli("broker", "status", "--http", stand_in.address).code == 0
    stand_in.answers = [topology([broker(1), broker(2), broker(3, alive=False)])]
    outcome = cli("broker", "status", "--http", stand_in.address)
    assert outcome.code == ExitCode.FAILED
    assert outcome.err.startswith(
        "problem: broker 3 is not alive\nremedy:  start it: moldau broker"
    )
    document = json.loads(cli("broker", "status", "-o", "json", "--http", stand_in.address).out)
    (found,) = document["problems"]
    assert found["problem"] == "broker 3 is not alive"
    assert found["remedy"].endswith("moldau broker remove 3")


def test_an_election_that_is_under_way_does_not_fail_a_status(cli, stand_in, monkeypatch):
    monkeypatch.setattr("moldau.cli.broker.broker_problems", lambda topology: [])
    members = [broker(1), broker(2)]
    stand_in.answers = [
        topology(members, [part(0, [1, 2], in_sync=[1])]),
        topology(members, [part(0, [1, 2])]),
    ]
    outcome = cli("broker", "status", "--http", stand_in.address)
    assert outcome.code == ExitCode.OK
    assert "0 under-replicated" in outcome.out


def test_a_status_asks_every_address(cli, stand_in, monkeypatch, nobody):
    monkeypatch.setattr("moldau.cli.broker.broker_problems", lambda topology: [])
    stand_in.answers = [topology([broker(1)])]
    outcome = cli("broker", "status", "--http", f"{stand_in.address},{nobody}")
    assert outcome.code == ExitCode.OK
    assert f"note: {nobody} does not respond, and is the HTTP address of no broker" in outcome.err
    host, _, port = nobody.rpartition(":")
    silent = msgspec.structs.replace(broker(2), http=Endpoint(host, int(port)))
    stand_in.answers = [topology([broker(1), silent])]
    outcome = cli("broker", "status", "--http", f"{stand_in.address},{nobody}")
    assert outcome.code == ExitCode.FAILED
    assert f"problem: {nobody} does not respond: cannot reach {nobody}" in outcome.err
    assert "remedy:  is that the HTTP address" in outcome.err
    assert cli("broker", "list", "--http", f"{stand_in.address},{nobody}").code == 0
    outcome = cli("broker", "status", "--http", nobody)
    assert outcome.code == ExitCode.UNREACHABLE


def test_the_addresses_of_a_status_are_of_one_cluster(cli, stand_in):
    other = StandIn()
    try:
        stand_in.answers = [topology([broker(1)])]
        other.answers = [topology([broker(1)], cluster_id="D")]
        outcome = cli("broker", "status", "--http", f"{stand_in.address},{other.address}")
    finally:
        other.server.shutdown()
        other.server.server_close()
    assert outcome.code == ExitCode.USAGE
    assert outcome.err == (
        f"error: the addresses belong to 2 clusters: {stand_in.address} to C; "
        f"{other.address} to D\n"
        f"hint:  name brokers of one cluster: --http {stand_in.address}\n"
    )


def test_a_broker_that_does_not_exist_is_not_found(cli, stand_in):
    stand_in.answers = [topology([broker(1), broker(2)])]
    for verb in (["status"], ["remove", "-y"], ["remove", "--cancel"]):
        outcome = cli("broker", *verb, 7, "--http", stand_in.address)
        assert outcome.code == ExitCode.NOT_FOUND
        assert "brokers: 1, 2" in outcome.err
    assert stand_in.posts == []


def test_a_broker_is_drained_until_it_is_gone(cli, stand_in):
    two = broker(2, http=stand_in.endpoint)
    stand_in.answers = [
        topology([broker(1), two], THREE),
        topology([broker(1, state="draining", replicas=1), two], THREE),
        topology([two], THREE),
    ]
    outcome = cli("broker", "remove", 1, "-y", "--http", stand_in.address)
    assert outcome.code == 0, outcome.err
    assert stand_in.posts == [("/api/v1/cluster/leave", {"broker": 1})]
    assert "2 replicas move from broker 1 to 1 other" in outcome.err
    assert outcome.out.splitlines()[1].split() == ["orders", "2", "1"]
    assert "broker 1 has left the cluster" in outcome.err


def test_a_broker_that_has_just_started_and_knows_no_other_ends_no_drain(cli, stand_in):
    two = broker(2, http=stand_in.endpoint)
    leaving = broker(1, state="draining", replicas=1)
    stand_in.answers = [
        topology([broker(1), two], THREE, version=5),
        topology([], version=0),
        topology([broker(1), two], THREE, version=4),
        topology([leaving, two], THREE, version=6),
        topology([two], THREE, version=7),
    ]
    outcome = cli("broker", "remove", 1, "-y", "--http", stand_in.address)
    assert outcome.code == 0, outcome.err
    assert stand_in.answers == [topology([two], THREE, version=7)]


def test_a_drain_that_was_cancelled_meanwhile_is_an_error(cli, stand_in):
    stand_in.answers = [topology([broker(1), broker(2)])]
    outcome = cli("broker", "remove", 1, "-y", "--http", stand_in.address)
    assert outcome.code == ExitCode.FAILED
    assert "was cancelled" in outcome.err


def test_removing_asks_and_need_not_wait(cli, stand_in):
    stand_in.answers = [topology([broker(1), broker(2)])]
    assert cli("broker", "remove", 1, "--http", stand_in.address).code == ExitCode.USAGE
    assert stand_in.posts == []
    outcome = cli("broker", "remove", 1, "-y", "--no-wait", "--http", stand_in.address)
    assert outcome.code == 0
    assert "is being drained" in outcome.err


def test_a_drain_is_taken_back(cli, stand_in):
    stand_in.answers = [topology([broker(1), broker(2)])]
    assert cli("broker", "remove", 1, "--cancel", "--http", stand_in.address).code == 0
    assert stand_in.posts == [("/api/v1/cluster/keep", {"broker": 1})]


def test_a_broker_that_was_cut_off_is_not_believed(cli, stand_in):
    other = StandIn()
    try:
        cut_off = [broker(1, state="draining"), broker(2, http=other.endpoint, alive=False)]
        stand_in.answers = [topology(cut_off, version=5)]
        other.answers = [topology([broker(2, http=other.endpoint)], version=6, answered_by=2)]
        assert cli("broker", "list", "-o", "name", "--http", stand_in.address).out == "2\n"
    finally:
        other.server.shutdown()
        other.server.server_close()


def test_what_is_wrong_is_named():
    brokers = [broker(1), broker(2, alive=False)]
    parts = [part(0, [1, 2], in_sync=[1]), part(1, [2, 1], in_sync=[], leader=-1)]
    found = problems(topology(brokers, parts, controller=-1))
    assert [each.text for each in found] == [
        "broker 2 is not alive",
        "no controller: a majority of the brokers is not alive?",
        "1 partition without a leader",
        "2 partitions under-replicated",
    ]
    # Broker 1 is not behind in the partition without a leader: nobody knows.
    assert [each.remedy for each in found][2:] == [
        "start broker 2",
        "start broker 2, and wait until in sync: moldau broker status 2",
    ]
    # Nothing can be removed without a controller.
    assert "remove" not in found[0].remedy
    assert behind(topology(brokers, parts), 2) == ["orders:0", "orders:1"]
    assert problems(topology([broker(1), broker(2)], [part(0, [1, 2])])) == []


def test_topics_with_one_copy_are_named_where_there_could_be_more():
    one = topology([broker(1)], [part(0, [1])])
    assert single_copies(one) is None
    three = topology([broker(1), broker(2), broker(3)], [part(0, [1]), part(1, [2, 3])])
    assert single_copies(three) == (
        "orders has one replica",
        "moldau partition move orders --to 1,2,3",
    )
    assert single_copies(topology([broker(1), broker(2)], [part(0, [1, 2])])) is None


def test_status_names_topics_with_one_copy_and_the_command(cli, stand_in, monkeypatch):
    monkeypatch.setattr("moldau.cli.cluster.health.broker_problems", lambda topology: [])
    stand_in.answers = [topology([broker(1), broker(2)], [part(0, [1])])]
    outcome = cli("broker", "status", "-o", "json", "--http", stand_in.address)
    (note,) = json.loads(outcome.out)["notes"]
    assert note == "orders has one replica; add replicas: moldau partition move orders --to 1,2"


def test_doctor_checks_the_cluster_of_a_broker(stand_in, nobody):
    stand_in.answers = [topology([broker(1), broker(2), broker(3, alive=False)], THREE)]
    found = list(check_cluster(Endpoint("127.0.0.1", stand_in.endpoint.port)))
    dead = [each for each in found if each.check == "broker 3"]
    assert dead[0].verdict is CheckStatus.TROUBLE
    assert "no heartbeat" in dead[0].detail
    assert "moldau broker remove 3" in dead[0].hint
    host, _, port = nobody.rpartition(":")
    (silent,) = check_cluster(Endpoint(host, int(port)))
    assert silent.verdict is CheckStatus.WARNING
    assert "http.addr" in silent.hint


def test_a_machine_counts_as_free_only_if_it_may_hold_a_replica():
    parts = [part(0, (1, 2))]
    for other, expected in (
        (broker(3, machine="b"), ["orders:0"]),
        (broker(3), ["orders:0"]),
        (broker(3, machine="b", alive=False), []),
        (broker(3, machine="b", state="draining"), []),
        (broker(3, machine="a"), []),
    ):
        brokers = [broker(1, machine="a"), broker(2, machine="a"), other]
        assert shared_machines(topology(brokers, parts)) == expected
    unknown = [broker(1), broker(2), broker(3)]
    assert shared_machines(topology(unknown, parts)) == []


def test_all_brokers_of_a_machine_are_drained_together(cli, stand_in):
    one, two = (broker(number, machine="a") for number in (1, 2))
    three = broker(3, machine="b", http=stand_in.endpoint)
    stand_in.answers = [
        topology([one, two, three], THREE),
        topology([broker(2, machine="a", state="draining"), three], THREE),
        topology([three], THREE),
    ]
    outcome = cli("broker", "remove", "--machine", "a", "-y", "--http", stand_in.address)
    assert outcome.code == 0, outcome.err
    # Before anything moves: no replica goes from one of them to the other.
    assert stand_in.posts == [("/api/v1/cluster/leave", {"broker": number}) for number in (1, 2)]
    assert "broker 1 has left the cluster" in outcome.err
    assert "broker 2 has left the cluster" in outcome.err


def test_which_broker_to_remove_must_be_said_by_number_or_machine(cli, stand_in):
    stand_in.answers = [topology([broker(1, machine="a")])]
    for which in ([], [1, "--machine", "a"]):
        outcome = cli("broker", "remove", *which, "-y", "--http", stand_in.address)
        assert outcome.code == ExitCode.USAGE
    outcome = cli("broker", "remove", "--machine", "x", "-y", "--http", stand_in.address)
    assert outcome.code == ExitCode.NOT_FOUND
    assert "machines: a" in outcome.err
    assert stand_in.posts == []
