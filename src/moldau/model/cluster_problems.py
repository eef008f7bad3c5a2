"""Problems of a cluster, each with what remedies it: one table for the command line and brokers.

A `Tally` counts what is wrong with partitions, one after another; its `Condition` is judged here.
"""

from collections.abc import Collection, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from moldau.model.topology import NO_BROKER
from moldau.model.words import counted, named_brokers

if TYPE_CHECKING:
    from moldau.model.topology import Topology

_DISK_SHARE_MIN: Final = 0.1


class Problem(NamedTuple):
    """What is wrong, and a command or step that mends it or says more."""

    text: str
    remedy: str = ""
    broker: int | None = None
    """The one that it is about."""
    topic: str | None = None
    """A topic that text or remedy name."""

    def __str__(self) -> str:
        return self.text


class Condition(Struct, frozen=True, kw_only=True):
    """What the metadata and the leaders show of a cluster."""

    controller: int
    down: tuple[int, ...]
    """Brokers that are not alive."""
    topics: int = 0
    partitions: int = 0
    leaderless: int = 0
    leaderless_topic: str = ""
    """The first topic with a partition without a leader."""
    awaited: frozenset[int] = frozenset()
    """Brokers with replicas of partitions without a leader."""
    under_replicated: int = 0
    late: frozenset[int] = frozenset()
    """Brokers that are not in sync, of partitions with a leader: without one, nobody says who is
    behind."""


class Tally:
    """Counts over the partitions of a cluster."""

    def __init__(self) -> None:
        self.topics = self.partitions = self.leaderless = self.under_replicated = 0
        self._leaderless_topic = ""
        self._awaited: set[int] = set()
        self._late: set[int] = set()

    def add(
        self, topic: str, leader: int, replicas: Iterable[int], missing: Collection[int]
    ) -> None:
        """One partition; `missing`: its replicas that are not in sync."""
        self.partitions += 1
        if leader == NO_BROKER:
            self.leaderless += 1
            self._leaderless_topic = self._leaderless_topic or topic
            self._awaited.update(replicas)
        else:
            self._late.update(missing)
        self.under_replicated += bool(missing)

    def condition(self, *, controller: int, down: Iterable[int]) -> Condition:
        return Condition(
            controller=controller,
            down=tuple(down),
            topics=self.topics,
            partitions=self.partitions,
            leaderless=self.leaderless,
            leaderless_topic=self._leaderless_topic,
            awaited=frozenset(self._awaited),
            under_replicated=self.under_replicated,
            late=frozenset(self._late),
        )


def condition_of(topology: "Topology") -> Condition:
    tally = Tally()
    for topic in topology.topics:
        tally.topics += 1
        for part in topic.partitions:
            tally.add(topic.name, part.leader, part.replicas, part.missing)
    down = (broker.id for broker in topology.brokers if not broker.alive)
    return tally.condition(controller=topology.controller, down=down)


def problems(cluster: Condition, *, known_down: Container[int] = ()) -> list[Problem]:
    """What the condition shows; the brokers themselves have more to say.

    Brokers of `known_down` are reported by the caller.
    """
    # Without a controller, none can be removed.
    gone = "" if cluster.controller < 0 else " · gone for good? moldau broker remove {}"
    found = [
        Problem(
            f"broker {number} is not alive",
            "start it: moldau broker start --data-dir DIR, with its usual options · does its "
            "process run? see its log, and restart it" + gone.format(number),
            broker=number,
        )
        for number in cluster.down
        if number not in known_down
    ]
    if cluster.controller < 0:
        found.append(
            Problem(
                "no controller: a majority of the brokers is not alive?",
                "start brokers until a majority is alive: moldau broker list",
            )
        )
    if cluster.leaderless:
        found.append(_without_leader(cluster))
    if cluster.late:
        found.append(_under_replicated(cluster))
    return found


def _without_leader(cluster: Condition) -> Problem:
    text = f"{counted(cluster.leaderless, 'partition')} without a leader"
    missing = sorted(cluster.awaited.intersection(cluster.down))
    if missing:
        return Problem(text, f"start {named_brokers(missing)}")
    topic = cluster.leaderless_topic
    return Problem(text, f"see its replicas: moldau topic describe {topic}", topic=topic)


def _under_replicated(cluster: Condition) -> Problem:
    late = sorted(cluster.late)
    slow = [number for number in late if number not in cluster.down]
    return Problem(
        f"{counted(cluster.under_replicated, 'partition')} under-replicated",
        f"see what is behind: moldau broker status {slow[0]}"
        if slow
        else f"start {named_brokers(late)}, and wait until in sync: moldau broker status {late[0]}",
    )


# ---- what a broker says of itself


def not_ready(broker: int, reasons: Iterable[str]) -> list[Problem]:
    remedy = f"check it: moldau broker status {broker}"
    return [Problem(f"broker {broker}: {reason}", remedy, broker) for reason in reasons]


def of_its_disk(broker: int, free: float | None, size: float | None) -> list[Problem]:
    if free is None or not size or free >= _DISK_SHARE_MIN * size:
        return []
    text = f"the disk of broker {broker} is {1 - free / size:.0%} full"
    remedy = "free space there, or shorten retention: moldau topic alter --help"
    return [Problem(text, remedy, broker)]


def of_offline_replicas(broker: int, offline: int) -> list[Problem]:
    if not offline:
        return []
    text = f"broker {broker}: {counted(offline, 'replica')} offline"
    return [Problem(text, "its log has the reason: a damaged log, or a full disk", broker)]


# ---- in one sentence


def sentence(found: Sequence[Problem], brokers: int, partitions: int) -> str:
    """The health of a cluster."""
    if found:
        return "; ".join(each.text for each in found)
    of_all = "the broker responds" if brokers == 1 else f"all {brokers} brokers respond"
    if not partitions:
        return f"{of_all}; there are no partitions yet"
    replicas = "all their replicas in sync" if partitions != 1 else "all its replicas in sync"
    verb = "has" if partitions == 1 else "have"
    return f"{of_all}, {counted(partitions, 'partition')} {verb} a leader and {replicas}"
