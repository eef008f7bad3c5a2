"""Snapshots of a made-up cluster for `moldau top`."""

from collections.abc import Iterable, Mapping, Sequence

from moldau.cli.top.poller import Answer, Snapshot
from moldau.cli.top.scrapes import Scrape, Span
from moldau.model.topology import (
    Endpoint,
    Topology,
    TopologyBroker,
    TopologyPartition,
    TopologyTopic,
)

AT = 1_800_000_000.0


def broker(number: int, *, alive: bool = True) -> TopologyBroker:
    return TopologyBroker(
        id=number,
        kafka=Endpoint("127.0.0.1", 9091 + number),
        http=Endpoint("127.0.0.1", 8079 + number),
        alive=alive,
        epoch=1,
        leaders=2,
        replicas=6,
        is_controller=number == 1,
    )


def topic(
    name: str, leaders: Sequence[int], *, in_sync: Sequence[int] = (1, 2, 3), internal: bool = False
) -> TopologyTopic:
    return TopologyTopic(
        name=name,
        id="0" * 32,
        internal=internal,
        partitions=tuple(
            TopologyPartition(
                partition=number,
                leader=leader,
                leader_epoch=1,
                replicas=(1, 2, 3),
                in_sync=tuple(in_sync),
            )
            for number, leader in enumerate(leaders)
        ),
    )


def topology(
    topics: Iterable[TopologyTopic] = (), *, down: Iterable[int] = (), controller: int = 1
) -> Topology:
    return Topology(
        cluster_id="c1u5ter",
        version=1,
        controller=controller,
        answered_by=1,
        brokers=tuple(broker(number, alive=number not in set(down)) for number in (1, 2, 3)),
        topics=tuple(topics),
    )


def answer(old: str | None, new: str, *reasons: str) -> Answer:
    """Scrapes two seconds apart."""
    before = None if old is None else Scrape(old, 0.0)
    return Answer(Span(before, Scrape(new, 2.0)), reasons=reasons)


def snapshot(
    found: Topology, answers: Mapping[int, Answer], *, unreachable_seconds: float = 0.0
) -> Snapshot:
    """Brokers that are not in `answers` have no metric at all, as if they were very old."""
    known = {each.id: answers.get(each.id, answer("", "")) for each in found.brokers}
    return Snapshot(AT, found, known, unreachable_seconds)
