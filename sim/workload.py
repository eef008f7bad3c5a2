"""What a kind of clients is to a world: the topics it needs, its beginning, its end, its
verdict."""

from collections.abc import Callable, Iterator

from msgspec import Struct

from faults.checker import Verdict
from sim.cluster import Cluster
from sim.scene import Violation


class TopicWanted(Struct, frozen=True):
    """A topic that is there before the clients begin."""

    name: str
    partitions: int
    configs: dict[str, str] = {}


class Workload:
    """Clients of one kind. They begin nothing new once `scene.is_over`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.plan = cluster.plan
        self.scene = cluster.scene

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
