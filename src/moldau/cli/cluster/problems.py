"""Problems of a cluster, each with the command that remedies it, and how they are printed."""

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.cli.output import counted, say
from moldau.model.topology import NO_BROKER

if TYPE_CHECKING:
    from moldau.model.topology import Topology

_BROKERS_MAX = 5


class Problem(NamedTuple):
    """What is wrong, and a command or step that mends it or says more."""

    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return self.text


def problem_rows(found: Iterable[Problem]) -> list[dict[str, Any]]:
    """For JSON and YAML."""
    return [{"problem": each.text, "remedy": each.remedy} for each in found]


def say_problems(found: Sequence[Problem]) -> None:
    for each in found:
        say(f"problem: {each.text}")
        if each.remedy:
            say(f"remedy:  {each.remedy}")


def problems(topology: "Topology", *, known_down: Container[int] = ()) -> list[Problem]:
    """What the topology shows; the brokers themselves are asked by `health.broker_problems`.

    Brokers of `known_down` are reported by the caller.
    """
    down = [broker.id for broker in topology.brokers if not broker.alive]
    # Without a controller, none can be removed.
    gone = "" if topology.controller < 0 else " · gone for good? moldau broker remove {}"
    found = [
        Problem(
            f"broker {number} is not alive",
            "start it: moldau broker start --data-dir DIR, with its usual options · does its "
            "process run? see its log, and restart it" + gone.format(number),
        )
        for number in down
        if number not in known_down
    ]
    if topology.controller < 0:
        found.append(
            Problem(
                "no controller: a majority of the brokers is not alive?",
                "start brokers until a majority is alive: moldau broker list",
            )
        )
    found += _without_leader(topology, down)
    found += _under_replicated(topology, down)
    return found


def _without_leader(topology: "Topology", down: Sequence[int]) -> Iterable[Problem]:
    if not topology.leaderless:
        return
    lost = [
        (topic.name, part)
        for topic in topology.topics
        for part in topic.partitions
        if part.leader == NO_BROKER
    ]
    missing = sorted({number for _, part in lost for number in part.replicas} & set(down))
    yield Problem(
        f"{counted(topology.leaderless, 'partition')} without a leader",
        f"start {_named(missing)}"
        if missing
        else f"see its replicas: moldau topic describe {lost[0][0]}",
    )


def _under_replicated(topology: "Topology", down: Sequence[int]) -> Iterable[Problem]:
    # Those without a leader have a problem of their own: nobody says who is behind.
    late = sorted(
        {
            number
            for topic in topology.topics
            for part in topic.partitions
            if part.leader != NO_BROKER
            for number in part.missing
        }
    )
    if not late:
        return
    slow = [number for number in late if number not in down]
    yield Problem(
        f"{counted(topology.under_replicated, 'partition')} under-replicated",
        f"see what is behind: moldau broker status {slow[0]}"
        if slow
        else f"start {_named(late)}, and wait until in sync: moldau broker status {late[0]}",
    )


def _named(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_BROKERS_MAX])
    return f"broker{'s' * (len(numbers) > 1)} {shown}" + " and others" * (
        len(numbers) > _BROKERS_MAX
    )
