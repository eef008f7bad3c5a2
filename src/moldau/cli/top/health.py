"""The health of the cluster in one sentence, from its topology and the metrics of its brokers."""

from collections.abc import Iterable
from typing import Final

from moldau.cli.cluster.problems import Problem, problems
from moldau.cli.output import counted
from moldau.cli.top.poller import Snapshot
from moldau.cli.top.scrapes import Span

_DISK_SHARE_MIN: Final = 0.1


def health_problems(snapshot: Snapshot) -> list[Problem]:
    """What the topology and the brokers themselves show."""
    found = problems(snapshot.topology)
    for broker in snapshot.topology.brokers:
        answer = snapshot.answers[broker.id]
        if answer.failure and broker.alive:
            what = "rejects this user" if answer.refusal else "does not respond over HTTP"
            text = f"broker {broker.id} {what}: {answer.failure}"
            found.append(Problem(text, f"check it: moldau broker status {broker.id}"))
        for reason in answer.reasons:
            remedy = f"check it: moldau broker status {broker.id}"
            found.append(Problem(f"broker {broker.id}: {reason}", remedy))
        if answer.span is not None:
            found += _problems_of(broker.id, answer.span)
    return found


def _problems_of(number: int, span: Span) -> Iterable[Problem]:
    free = span.new.value("moldau_disk_free_bytes")
    size = span.new.value("moldau_disk_total_bytes")
    if free is not None and size and free < _DISK_SHARE_MIN * size:
        text = f"the disk of broker {number} is {1 - free / size:.0%} full"
        yield Problem(text, "free space there, or shorten retention: moldau topic alter --help")
    if offline := span.new.value("moldau_partitions_offline"):
        text = f"broker {number}: {counted(int(offline), 'replica')} offline"
        yield Problem(text, "its log has the reason: a damaged log, or a full disk")
    if short := span.new.value("moldau_partitions_under_min_insync"):
        text = f"{counted(int(short), 'partition')} of broker {number} reject acks=all"
        yield Problem(text, "fewer are in sync than min.insync.replicas: start the other brokers")


def health_level(snapshot: Snapshot, found: list[Problem]) -> str:
    topology = snapshot.topology
    if snapshot.unreachable_seconds and not any(each.span for each in snapshot.answers.values()):
        return "unreachable"
    if topology.controller < 0 or topology.leaderless:
        return "unavailable"
    return "degraded" if found else "healthy"


def summary(snapshot: Snapshot, level: str, found: list[Problem], partitions: int) -> str:
    """The health in one sentence."""
    brokers = snapshot.topology.brokers
    if level == "unreachable":
        return (
            f"no broker has responded for {snapshot.unreachable_seconds:.0f} s; "
            f"{counted(len(brokers), 'broker')} tried"
        )
    if found:
        return "; ".join(each.text for each in found)
    replicas = "all their replicas in sync" if partitions != 1 else "all its replicas in sync"
    verb = "has" if partitions == 1 else "have"
    of_all = "the broker responds" if len(brokers) == 1 else f"all {len(brokers)} brokers respond"
    if not partitions:
        return f"{of_all}; there are no partitions yet"
    return f"{of_all}, {counted(partitions, 'partition')} {verb} a leader and {replicas}"
