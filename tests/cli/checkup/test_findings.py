"""Each problem of a cluster is named, with the command that mends it; a healthy one has none."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from moldau.cli.check_result import CheckStatus
from moldau.cli.checkup.facts import (
    BrokerFacts,
    ClockReading,
    ClusterFacts,
    PortFault,
    StuckGroup,
)
from moldau.cli.checkup.findings import judge
from moldau.model.broker_report import (
    BrokerReport,
    CertificateExpiry,
    IdleGroup,
    IdlePosition,
)
from moldau.model.topology import (
    Endpoint,
    Topology,
    TopologyBroker,
    TopologyPartition,
    TopologyTopic,
)

GIB = 2**30
DAY = 86_400
NOW = 1_800_000_000


def broker(number: int, **fields: Any) -> BrokerFacts:
    shown = TopologyBroker(
        id=number,
        kafka=Endpoint("10.0.0.1", 9092 + number),
        alive=fields.pop("alive", True),
        epoch=1,
        leaders=2,
        replicas=6,
    )
    report = BrokerReport(
        broker=number,
        cluster_id="c",
        version=fields.pop("version", "1.0.0"),
        feature_level_max=3,
        now_ms=NOW * 1000,
        disk_free_bytes=fields.pop("free", 50 * GIB),
        disk_total_bytes=100 * GIB,
        disk_reserve_bytes=GIB,
        largest_topic="orders",
        largest_topic_bytes=GIB,
        open_files=fields.pop("open_files", 100),
        open_files_max=fields.pop("open_files_max", 20_000),
        connections_max=4096,
        certificates=fields.pop("certificates", ()),
    )
    clock = ClockReading(ahead_ms=fields.pop("ahead_ms", 0.0), uncertain_ms=5.0)
    return BrokerFacts(**{"broker": shown, "report": report, "clock": clock, **fields})


def part(number: int, leader: int, *replicas: int, **fields: Any) -> TopologyPartition:
    return TopologyPartition(
        partition=number,
        leader=leader,
        leader_epoch=1,
        replicas=replicas,
        in_sync=fields.pop("in_sync", replicas),
        **fields,
    )


EVEN = tuple(part(n, n % 3 + 1, n % 3 + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1) for n in range(6))


def cluster(
    *brokers: BrokerFacts, parts: tuple[TopologyPartition, ...] = EVEN, **fields: Any
) -> ClusterFacts:
    topology = Topology(
        cluster_id="c",
        version=1,
        controller=fields.pop("controller", 1),
        answered_by=1,
        brokers=tuple(one.broker for one in brokers),
        topics=(TopologyTopic(name="orders", id="0" * 32, partitions=parts),),
    )
    return ClusterFacts(topology=topology, brokers=brokers, now_s=float(NOW), **fields)


def three(first: BrokerFacts | None = None, **fields: Any) -> ClusterFacts:
    return cluster(first or broker(1), broker(2), broker(3), **fields)


def test_a_healthy_cluster_has_no_problem():
    found = judge(three())
    assert {result.verdict for result in found} == {CheckStatus.OK}
    checks = {result.check for result in found}
    assert {"partitions", "copies", "leaders", "clocks", "disk", "groups"} <= checks


def on_machines(names: str, *parts: TopologyPartition) -> ClusterFacts:
    brokers = [broker(number) for number in range(1, len(names) + 1)]
    return cluster(
        *(
            replace(one, broker=msgspec.structs.replace(one.broker, machine=name))
            for one, name in zip(brokers, names, strict=True)
        ),
        parts=parts,
    )


def test_copies_on_one_machine_are_found_while_another_machine_has_none():
    near, apart = part(0, 1, 1, 2), part(1, 2, 2, 3)
    (found,) = [one for one in judge(on_machines("aab", near, apart)) if one.check == "machines"]
    assert found.verdict is CheckStatus.WARNING
    assert "1 partition with two replicas on one machine" in found.detail
    assert "orders:0" in found.detail
    assert "moldau partition plan" in found.hint
    alone = judge(on_machines("aa", near))
    assert not [one for one in alone if one.check == "machines"], "there is no other machine"
    full = judge(on_machines("aab", part(0, 1, 1, 2, 3)))
    assert [one.verdict for one in full if one.check == "machines"] == [CheckStatus.OK]
    leaving = part(0, 1, 1, 2, 3, adding=(3,), removing=(2,))
    moving = judge(on_machines("aab", leaving))
    assert [one.verdict for one in moving if one.check == "machines"] == [CheckStatus.OK]


POSITION = IdlePosition(topic="orders", partition=4, committed=7, commit_ms=1, lag=9)
TROUBLE, WARNING = CheckStatus.TROUBLE, CheckStatus.WARNING


def group(**fields: Any) -> tuple[StuckGroup, ...]:
    given = {"group": "billing", "has_members": True, "commits": 1, **fields}
    return (StuckGroup(group=IdleGroup(**given), waits_longer_than_ms=600_000),)


PROBLEMS: dict[str, tuple[ClusterFacts, CheckStatus, str, str]] = {
    "a dead broker": (
        three(broker(1, alive=False, report=None)),
        TROUBLE,
        "no heartbeat",
        "moldau broker remove 1",
    ),
    "no controller": (three(controller=-1), TROUBLE, "no broker is the controller", "broker list"),
    "a port": (
        three(broker(1, faults=(PortFault(port="grpc", address="h:1", reason="refused"),))),
        TROUBLE,
        "grpc port h:1: refused",
        "grpc.advertised",
    ),
    "a raft port that only this machine cannot reach": (
        three(broker(1, faults=(PortFault(port="raft", address="h:1", reason="refused"),))),
        WARNING,
        "the other brokers do get its heartbeats",
        "raft.advertised",
    ),
    "a process that hangs": (
        three(
            broker(
                1,
                faults=(
                    PortFault(port="http", address="h:1", reason="timed out after 1 s"),
                    PortFault(port="kafka", address="h:2", reason="timed out after 1 s"),
                ),
            )
        ),
        TROUBLE,
        "hangs",
        "restart it",
    ),
    "a process that hangs, and is taken for dead": (
        three(
            broker(
                1,
                alive=False,
                report=None,
                faults=(
                    PortFault(port="http", address="h:1", reason="timed out after 1 s"),
                    PortFault(port="kafka", address="h:2", reason="timed out after 1 s"),
                ),
            )
        ),
        TROUBLE,
        "hangs",
        "restart it",
    ),
    "a broker that only this machine can reach": (
        three(broker(1, alive=False)),
        TROUBLE,
        "responds here at all of its ports",
        "the network between the brokers",
    ),
    "not ready": (
        three(broker(1, not_ready=("disk is full",))),
        TROUBLE,
        "not ready: disk is full",
        "moldau broker status 1",
    ),
    "an old version without reports": (
        three(broker(1, report=None, no_report="too old")),
        WARNING,
        "gives no report (too old)",
        "acl add",
    ),
    "another cluster": (
        three(other_clusters={"h:9": "d"}),
        TROUBLE,
        "belongs to cluster d",
        "profile list",
    ),
    "an address": (three(unreachable={"h:9": "refused"}), WARNING, "refused", "broker list"),
    "no leader": (
        three(broker(1, alive=False), parts=(part(0, -1, 1),)),
        TROUBLE,
        "without a leader: orders:0",
        "see broker 1 above · moldau topic describe orders",
    ),
    "under-replicated": (
        three(parts=(part(0, 1, 1, 2, in_sync=(1,)),)),
        TROUBLE,
        "the replicas of broker 2 are not in sync in 1 partition: orders:0",
        "moldau broker status 2",
    ),
    "replicas of a dead broker": (
        three(broker(1, alive=False, report=None), parts=(part(0, 2, 2, 1, in_sync=(2,)),)),
        TROUBLE,
        "the replicas of broker 1 are not in sync in 1 partition: orders:0",
        "see broker 1 above, and wait: moldau broker status 1",
    ),
    "one replica": (
        three(parts=(part(0, 1, 1),)),
        WARNING,
        "orders has one replica in a cluster of 3 brokers",
        "moldau partition move orders --to 1,2,3",
    ),
    "leaders that did not return": (
        three(parts=tuple(part(n, 2, 1, 2, 3) for n in range(4))),
        WARNING,
        "4 of 4 partitions are not led by their preferred leader",
        "moldau partition elect-leaders",
    ),
    "preferred leaders on one broker": (
        three(parts=tuple(part(n, 1, 1, 2, 3) for n in range(6))),
        WARNING,
        "broker 1 is the preferred leader of 6 partitions, broker 2 of 0",
        "moldau partition plan",
    ),
    "a clock": (
        three(broker(1, ahead_ms=2_000.0)),
        WARNING,
        "the clock of broker 1 is 2.0 s ahead of the others",
        "chronyc makestep",
    ),
    "a clock that is far off": (
        three(broker(1, ahead_ms=-60_000.0)),
        TROUBLE,
        "the clock of broker 1 is 60.0 s behind the others",
        "chronyc makestep",
    ),
    "the clock here": (
        cluster(*(broker(n, ahead_ms=-60_000.0) for n in (1, 2, 3))),
        WARNING,
        "the clock of this machine is 60.0 s ahead of those of the brokers",
        "here: chronyc",
    ),
    "a full disk": (
        three(broker(1, free=GIB)),
        TROUBLE,
        "less than its reserve",
        "moldau topic trim orders",
    ),
    "a nearly full disk": (
        three(broker(1, free=9 * GIB)),
        WARNING,
        "9.0 GiB of 100.0 GiB free",
        "moldau topic trim orders",
    ),
    "few files": (
        three(broker(1, open_files_max=1024)),
        WARNING,
        "the limit of 1024 is too low",
        "LimitNOFILE=4608",
    ),
    "no more files": (
        three(broker(1, open_files=900, open_files_max=1024)),
        TROUBLE,
        "900 of 1024 are open",
        "LimitNOFILE=4608",
    ),
    "an expired certificate": (
        three(broker(1, certificates=(CertificateExpiry(file="a.pem", expires_s=NOW - 1),))),
        TROUBLE,
        "a.pem expired",
        "replace a.pem",
    ),
    "a certificate that expires": (
        three(broker(1, certificates=(CertificateExpiry(file="a.pem", expires_s=NOW + DAY),))),
        WARNING,
        "in 1 day",
        "replace a.pem",
    ),
    "versions": (
        three(broker(1, version="0.9.0")),
        WARNING,
        "0.9.0 on broker 1; 1.0.0 on broker 2, broker 3",
        "one broker at a time",
    ),
    "a group that never commits": (
        three(stuck_groups=group(commits=0)),
        WARNING,
        "billing has members, and has never committed an offset",
        "moldau group describe billing",
    ),
    "a stuck group": (
        three(stuck_groups=group(positions=(POSITION,))),
        WARNING,
        "billing makes no progress in orders:4: 9 messages wait, some for more than 10 minutes",
        "moldau consume orders -p 4 --offset 7 -n 1",
    ),
    "a group without members": (
        three(stuck_groups=group(positions=(POSITION,), has_members=False)),
        WARNING,
        "without members, with unprocessed messages: billing",
        "moldau group delete billing",
    ),
    "too many groups": (three(groups_unchecked=7), WARNING, "7 groups not checked", "describe"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_is_named_with_its_remedy(name):
    facts, verdict, detail, remedy = PROBLEMS[name]
    wrong = [result for result in judge(facts) if result.verdict is not CheckStatus.OK]
    (found,) = [result for result in wrong if detail in result.detail]
    assert found.verdict is verdict
    assert remedy in found.hint
    others = {result.check for result in wrong if result is not found}
    # One cause may show in more than one place, as a dead broker in its partitions.
    assert len(wrong) == 1 or others <= {"partitions", "copies", "broker 1"}, wrong


def test_no_broker_is_to_be_removed_without_a_controller():
    lost = judge(three(broker(1, alive=False, report=None), controller=-1))
    assert not [result for result in lost if "broker remove" in result.hint]


def test_a_difference_that_the_round_trip_explains_is_no_skew():
    late = broker(1, ahead_ms=700.0)
    assert late.clock is not None
    slow = replace(late, clock=replace(late.clock, uncertain_ms=600.0))
    assert all(result.verdict is CheckStatus.OK for result in judge(three(slow)))


def test_a_report_of_a_newer_broker_is_read():
    report = broker(1).report
    newer = {**msgspec.to_builtins(report), "added_later": 1}
    assert msgspec.convert(newer, BrokerReport) == report
