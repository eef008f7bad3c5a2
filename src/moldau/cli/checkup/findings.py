"""Judges what was learnt of a cluster: for each problem what, why it matters, and the command.

Pure: facts in, results out. Every check gives at least one result, so that a report without a line
about disks cannot mean that the disks are fine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from moldau.cli.check_result import CheckResult, ok, trouble, warning
from moldau.cli.checkup.facts import BrokerFacts, ClusterFacts
from moldau.cli.cluster.topology import headline, shared_machines, single_copies
from moldau.cli.output import counted, format_bytes
from moldau.model.broker_report import FILES_BESIDE_CONNECTIONS
from moldau.model.topology import NO_BROKER

if TYPE_CHECKING:
    from moldau.model.broker_report import BrokerReport
    from moldau.model.topology import TopologyPartition

_SKEW_WARNING_MS: Final = 500
_SKEW_TROUBLE_MS: Final = 5_000
_DISK_FREE_PERCENT: Final = 10
_LEADERS_OFF_PERCENT: Final = 10
_LEADERS_OFF_MIN: Final = 2
_SPREAD_MIN: Final = 2
_SPREAD_PERCENT: Final = 25
_FILES_USED_PERCENT: Final = 80
_DAY_S: Final = 86_400
_EXPIRES_SOON_S: Final = 30 * _DAY_S
_NAMES_MAX: Final = 5


def judge(facts: ClusterFacts) -> list[CheckResult]:
    """The results of all checks, in a fixed order."""
    return [result for check in _CHECKS for result in check(facts)]


def _named(names: Sequence[object]) -> str:
    shown = ", ".join(map(str, names[:_NAMES_MAX]))
    more = len(names) - _NAMES_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _reports(facts: ClusterFacts) -> "Iterator[tuple[str, BrokerReport]]":
    """Of the brokers that gave one."""
    for one in facts.brokers:
        if one.report is not None:
            yield f"broker {one.broker.id}", one.report


def _addresses(facts: ClusterFacts) -> Iterator[CheckResult]:
    for address, cluster_id in facts.other_clusters.items():
        yield trouble(
            f"address {address}",
            f"belongs to cluster {cluster_id}, not to {facts.topology.cluster_id}",
            "list what your profiles and variables name: moldau profile list",
            "clients with both addresses read and write in either cluster",
        )
    for address, reason in facts.unreachable.items():
        yield warning(
            f"address {address}",
            reason,
            "brokers of the cluster: moldau broker list",
            "clients that know only this address cannot connect",
        )


def _brokers(facts: ClusterFacts) -> Iterator[CheckResult]:
    topology = facts.topology
    if topology.controller < 0:
        yield trouble(
            "controller",
            "no broker is the controller",
            "start the brokers that are down: moldau broker list",
            "without a majority of the voters, no topic, member or setting can be changed",
        )
    dead = [one for one in facts.brokers if not one.broker.alive]
    for one in dead:
        detail, hint = _dead(one, can_remove=topology.controller >= 0)
        yield trouble(
            f"broker {one.broker.id}",
            detail,
            hint,
            f"{counted(one.broker.replicas, 'replica')} miss a copy until it is back",
        )
    for one in facts.brokers:
        if one.broker.alive:
            yield from _ports(one)
    if not dead and topology.controller >= 0:
        yield ok("cluster", headline(topology))


def _dead(one: BrokerFacts, *, can_remove: bool) -> tuple[str, str]:
    """What keeps its heartbeats from the other brokers, and the remedy."""
    detail = "the other brokers get no heartbeat from it"
    if one.hangs:
        return f"{detail}: {_HANGS}", _HANGS_HINT
    if not one.faults and one.report is not None:
        return (
            f"{detail}, but it responds here at all of its ports",
            f"the network between the brokers, or a firewall: can all others reach "
            f"{one.broker.raft}? see its log",
        )
    hint = "start it, see its log: moldau broker start --config FILE"
    if can_remove:
        hint += f" · gone for good? moldau broker remove {one.broker.id}"
    return detail, hint


_HANGS: Final = "hangs: connections to it open, and get no response"
_HANGS_HINT: Final = (
    "is its process stopped, its disk stuck? see its log, ps and vmstat; restart it"
)
_PORT_WHY: Final = {
    "kafka": "Kafka clients get this address from the cluster, and cannot use the broker",
    "grpc": "workers of queues get this address from the cluster, and cannot use the broker",
    "http": "probes, metrics and the commands of moldau need it",
    "raft": "brokers that cannot reach it get no replicas from it",
}


def _ports(one: BrokerFacts) -> Iterator[CheckResult]:
    name = f"broker {one.broker.id}"
    faults = one.faults
    if one.hangs:
        faults = tuple(fault for fault in faults if not fault.timed_out)
        yield trouble(
            name,
            _HANGS,
            _HANGS_HINT,
            "clients of its partitions wait, until it is taken for dead",
        )
    for fault in faults:
        make = warning if fault.port == "raft" else trouble
        detail = f"{fault.port} port {fault.address}: {fault.reason}"
        if fault.port == "raft":
            detail += "; the other brokers do get its heartbeats"
        yield make(
            name,
            detail,
            f"open it in the firewall, or set {fault.port}.advertised to an address that is "
            "reachable",
            _PORT_WHY[fault.port],
        )
    for reason in one.not_ready:
        yield trouble(
            name,
            f"not ready: {reason}",
            f"see its log, and: moldau broker status {one.broker.id}",
            "load balancers send it no clients, and some requests fail",
        )
    if not one.faults and not one.not_ready:
        yield ok(name, "ready, and reachable at its Kafka, gRPC, HTTP and Raft ports")
    if one.report is None and not any(fault.port == "http" for fault in one.faults):
        yield warning(
            name,
            f"gives no report ({one.no_report}): clock, disk and files were not checked",
            "use the version of the newest broker everywhere, and a user who may describe the "
            "cluster: moldau acl add --help",
            "its problems stay unknown",
        )


def _partitions(facts: ClusterFacts) -> Iterator[CheckResult]:
    topology = facts.topology
    dead = {one.id for one in topology.brokers if not one.alive}
    leaderless: list[str] = []
    behind: dict[int, list[str]] = {}
    for topic in topology.topics:
        for part in topic.partitions:
            name = f"{topic.name}:{part.partition}"
            if part.leader == NO_BROKER:
                leaderless.append(name)
                continue
            for number in part.missing:
                behind.setdefault(number, []).append(name)
    if leaderless:
        down = f"see {_named([f'broker {one}' for one in sorted(dead)])} above" if dead else ""
        yield trouble(
            "partitions",
            f"{counted(len(leaderless), 'partition')} without a leader: {_named(leaderless)}",
            f"{down or 'see the logs of its replicas'} · "
            f"moldau topic describe {leaderless[0].rpartition(':')[0]}",
            "they can be neither written nor read",
        )
    for number, names in behind.items():
        yield trouble(
            "partitions",
            f"the replicas of broker {number} are not in sync in "
            f"{counted(len(names), 'partition')}: {_named(names)}",
            f"see broker {number} above, and wait: moldau broker status {number}"
            if number in dead
            else f"watch whether it catches up: moldau broker status {number}",
            "the next failure can stop writes with acks=all, or lose the last copy",
        )
    if not leaderless and not behind:
        yield ok("partitions", "each has a leader, and all replicas are in sync")


def _copies(facts: ClusterFacts) -> Iterator[CheckResult]:
    single = single_copies(facts.topology)
    if single is None:
        yield ok("copies", "no topic loses its messages with one disk")
        return
    yield warning(
        "copies",
        f"{single.text} in a cluster of {counted(len(facts.topology.brokers), 'broker')}",
        f"add replicas, topic by topic: {single.command}",
        "a disk failure loses its messages",
    )


def _machines(facts: ClusterFacts) -> Iterator[CheckResult]:
    names = shared_machines(facts.topology)
    if names:
        yield warning(
            "machines",
            f"{counted(len(names), 'partition')} with two replicas on one machine, while another "
            f"machine has none: {_named(names)}",
            "moldau partition plan --file plan.json, then: moldau partition apply plan.json",
            "a machine that fails takes several copies with it",
        )
    elif len({one.machine or one.id for one in facts.topology.brokers}) > 1:
        yield ok("machines", "no machine has two copies that could be apart")


def _leaders(facts: ClusterFacts) -> Iterator[CheckResult]:
    usable = {one.id for one in facts.topology.brokers if one.alive and one.state == "active"}
    parts = [part for topic in facts.topology.topics for part in topic.partitions]
    off = [part for part in parts if _could_return(part, usable)]
    if len(off) >= _LEADERS_OFF_MIN and len(off) * 100 > _LEADERS_OFF_PERCENT * len(parts):
        yield warning(
            "leaders",
            f"{len(off)} of {counted(len(parts), 'partition')} are not led by their preferred "
            "leader, which is in sync",
            "moldau partition elect-leaders",
            "some brokers do the work of others; the cluster does this itself within minutes",
        )
        return
    preferred = dict.fromkeys(usable, 0)
    for part in parts:
        if part.replicas and part.replicas[0] in preferred:
            preferred[part.replicas[0]] += 1
    counts = sorted(preferred.values()) or [0]
    spread = counts[-1] - counts[0]
    mean = sum(counts) / len(counts)
    if spread > _SPREAD_MIN and spread * 100 > _SPREAD_PERCENT * mean:
        most = max(preferred, key=lambda number: (preferred[number], -number))
        least = min(preferred, key=lambda number: (preferred[number], number))
        yield warning(
            "leaders",
            f"unbalanced: broker {most} is the preferred leader of {preferred[most]} partitions, "
            f"broker {least} of {preferred[least]}",
            "moldau partition plan --file plan.json, then: moldau partition apply plan.json",
            "all writes and reads go to leaders: the busiest broker limits the cluster",
        )
        return
    yield ok("leaders", f"balanced: {counts[0]} to {counts[-1]} partitions per broker")


def _could_return(part: "TopologyPartition", usable: set[int]) -> bool:
    if not part.replicas or part.adding or part.removing:
        return False
    preferred = part.replicas[0]
    return part.leader not in (-1, preferred) and preferred in usable and preferred in part.in_sync


def _clocks(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Against the median broker: the clock of this machine may be the wrong one."""
    readings = [(one.clock, one.broker.id) for one in facts.brokers if one.clock is not None]
    if not readings:
        return
    readings.sort(key=lambda reading: reading[0].ahead_ms)
    middle, _ = readings[len(readings) // 2]
    mend = "chronyc makestep, or timedatectl set-ntp true"
    wrong = []
    for clock, number in readings:
        difference = clock.ahead_ms - middle.ahead_ms
        # Without what the round trips leave open.
        sure_ms = abs(difference) - clock.uncertain_ms - middle.uncertain_ms
        if sure_ms >= _SKEW_WARNING_MS:
            wrong.append(number)
            yield (trouble if sure_ms >= _SKEW_TROUBLE_MS else warning)(
                "clocks",
                f"the clock of broker {number} is {abs(difference) / 1000:.1f} s "
                f"{'ahead of' if difference > 0 else 'behind'} the others",
                f"on its machine: {mend}",
                "retention, timestamps, tokens and certificates are judged by the wrong time",
            )
    if not wrong:
        spread = readings[-1][0].ahead_ms - readings[0][0].ahead_ms
        yield ok("clocks", f"within {max(spread, 1):.0f} ms of each other")
    if abs(middle.ahead_ms) - middle.uncertain_ms >= _SKEW_TROUBLE_MS:
        yield warning(
            "clocks",
            f"the clock of this machine is {abs(middle.ahead_ms) / 1000:.1f} s "
            f"{'behind' if middle.ahead_ms > 0 else 'ahead of'} those of the brokers",
            f"here: {mend}",
            "times given to commands (@-10m) mean another time on the brokers",
        )


def _disks(facts: ClusterFacts) -> Iterator[CheckResult]:
    for name, report in _reports(facts):
        free, total = report.disk_free_bytes, report.disk_total_bytes
        detail = f"{name}: {format_bytes(free)} of {format_bytes(total)} free"
        frees = "add space, or move other files from the disk"
        if report.largest_topic:
            frees += (
                f", or delete old messages of the largest topic there, {report.largest_topic} "
                f"({format_bytes(report.largest_topic_bytes)}). Choose the time so that enough "
                f"goes: moldau topic trim {report.largest_topic} --to @-1d --dry-run"
            )
        if free <= report.disk_reserve_bytes:
            yield trouble(
                "disk",
                f"{detail}, less than its reserve of {format_bytes(report.disk_reserve_bytes)}",
                frees,
                "it rejects writes until there is more",
            )
        elif free * 100 < _DISK_FREE_PERCENT * total or free < 2 * report.disk_reserve_bytes:
            yield warning("disk", detail, frees, "a full disk rejects writes")
        else:
            yield ok("disk", detail)


def _files(facts: ClusterFacts) -> Iterator[CheckResult]:
    for name, report in _reports(facts):
        most, used = report.open_files_max, report.open_files
        needed = report.connections_max + FILES_BESIDE_CONNECTIONS
        mend = f"LimitNOFILE={needed} in its systemd unit, or ulimit -n {needed}, and restart it"
        if most < 0:
            yield ok("open files", f"{name}: not limited")
        elif used * 100 > _FILES_USED_PERCENT * most:
            yield trouble(
                "open files",
                f"{name}: {used} of {most} are open",
                mend,
                "without a free one it rejects clients, and cannot open the next log segment",
            )
        elif most < needed:
            yield warning(
                "open files",
                f"{name}: the limit of {most} is too low for kafka.connections_max = "
                f"{report.connections_max}",
                mend,
                "it accepts fewer clients than configured",
            )
        else:
            yield ok("open files", f"{name}: {max(used, 0)} of {most} are open")


def _certificates(facts: ClusterFacts) -> Iterator[CheckResult]:
    for name, report in _reports(facts):
        for one in report.certificates:
            left = one.expires_s - facts.now_s
            when = f"{datetime.fromtimestamp(one.expires_s, UTC):%Y-%m-%d %H:%M} UTC"
            renew = f"replace {one.file} on its machine; the broker loads it without a restart"
            why = "clients and brokers refuse it when it has expired"
            if left <= 0:
                yield trouble("certificates", f"{name}: {one.file} expired {when}", renew, why)
            elif left < _EXPIRES_SOON_S:
                days = int(left // _DAY_S)
                detail = f"{name}: {one.file} expires {when}, in {counted(days, 'day')}"
                yield warning("certificates", detail, renew, why)
            else:
                yield ok("certificates", f"{name}: {one.file} is valid until {when}")


def _versions(facts: ClusterFacts) -> Iterator[CheckResult]:
    by_version: dict[str, list[int]] = {}
    for one in facts.brokers:
        if one.report is not None:
            by_version.setdefault(one.report.version, []).append(one.broker.id)
    if len(by_version) > 1:
        shown = "; ".join(
            f"{version} on {_named([f'broker {one}' for one in ids])}"
            for version, ids in sorted(by_version.items())
        )
        yield warning(
            "broker versions",
            f"they differ: {shown}",
            "finish the upgrade, one broker at a time: pip install -U moldau, restart it, wait: "
            "moldau broker status",
            "new features are used only when all brokers have them",
        )
    elif by_version:
        yield ok("broker versions", f"all have {next(iter(by_version))}")


def _groups(facts: ClusterFacts) -> Iterator[CheckResult]:
    left: list[str] = []
    for stuck in facts.stuck_groups:
        group = stuck.group
        if not group.positions:
            yield warning(
                "groups",
                f"{group.group} has members, and has never committed an offset",
                f"does it commit, and did it just start? moldau group describe {group.group}",
                "after a restart it reads everything again, or skips what it has not read",
            )
        elif group.has_members:
            at = group.positions[0]
            yield warning(
                "groups",
                f"{group.group} makes no progress in {at.topic}:{at.partition}: "
                f"{counted(at.lag, 'message')} wait, some for more than "
                f"{stuck.waits_longer_than_ms // 60_000} minutes",
                f"see its consumers' logs for the message at offset {at.committed}: moldau consume "
                f"{at.topic} -p {at.partition} --offset {at.committed} -n 1",
                "its messages are not processed, and retention deletes them in the end",
            )
        else:
            left.append(group.group)
    if left:
        yield warning(
            "groups",
            f"without members, with unprocessed messages: {_named(left)}",
            f"start its consumers, or delete it: moldau group delete {left[0]}",
            "nobody processes their messages",
        )
    if facts.groups_unchecked:
        yield warning(
            "groups",
            f"{counted(facts.groups_unchecked, 'group')} not checked: too many",
            "one by one: moldau group describe GROUP",
        )
    if not facts.stuck_groups:
        yield ok("groups", "none is stuck")


_CHECKS: Final[Iterable[Callable[[ClusterFacts], Iterator[CheckResult]]]] = (
    _addresses,
    _brokers,
    _partitions,
    _copies,
    _machines,
    _leaders,
    _clocks,
    _disks,
    _files,
    _certificates,
    _versions,
    _groups,
)
