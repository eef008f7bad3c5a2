"""The health of the cluster in one sentence, from its topology and the metrics of its brokers."""

from collections.abc import Iterable

from moldau.cli.cluster.problems import problems
from moldau.cli.output import counted
from moldau.cli.top.poller import Snapshot
from moldau.cli.top.scrapes import Span
from moldau.model.cluster_problems import (
    Problem,
    not_ready,
    of_its_disk,
    of_offline_replicas,
    sentence,
)


def health_problems(snapshot: Snapshot) -> list[Problem]:
    """What the topology and the brokers themselves show."""
    found = problems(snapshot.topology)
    for broker in snapshot.topology.brokers:
        answer = snapshot.answers[broker.id]
        if answer.failure and broker.alive:
            what = "rejects this user" if answer.refusal else "does not respond over HTTP"
            text = f"broker {broker.id} {what}: {answer.failure}"
            found.append(Problem(text, f"check it: moldau broker status {broker.id}"))
        found += not_ready(broker.id, answer.reasons)
        if answer.span is not None:
            found += _problems_of(broker.id, answer.span)
    return found


def _problems_of(number: int, span: Span) -> Iterable[Problem]:
    free = span.new.value("moldau_disk_free_bytes")
    yield from of_its_disk(number, free, span.new.value("moldau_disk_total_bytes"))
    yield from of_offline_replicas(number, int(span.new.value("moldau_partitions_offline") or 0))
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
    return sentence(found, len(brokers), partitions)
