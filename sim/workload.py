"""What a kind of clients is to a world: the topics it needs, its beginning, its end, its
verdict."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from faults.checker import Verdict
from sim.scene import Scene, Violation

if TYPE_CHECKING:
    from sim.plan import Plan
    from sim.world import World


class TopicWanted(Struct, frozen=True):
    """A topic that is there before the clients begin."""

    name: str
    partitions: int
    configs: dict[str, str] = {}


class Workload:
    """Clients of one kind. They begin nothing new once `scene.is_over`."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.plan: Plan = world.plan
        self.scene: Scene = world.scene

    def topics(self) -> list[TopicWanted]:
        return []

    def begin(self) -> None:
        """Start the clients: the topics are there."""

    def stages(self) -> Iterator[Callable[[], None]]:
        """What is to be finished, one after the other, once nobody begins anything new."""
        return iter(())

    def judge(self) -> None:
        """Raises Violation."""


def raise_unless_clean(what: str, verdict: Verdict) -> None:
    """Raises Violation."""
    if not verdict.clean:
        found = "; ".join(
            f"{anomaly}: {count}, e.g. {verdict.examples[anomaly][0]}"
            for anomaly, count in verdict.found.items()
        )
        raise Violation(f"{what}: {found}" if what else found)
