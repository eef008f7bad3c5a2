"""Producers of plain and compacted topics, those who follow them, and the verdict on both."""

from collections.abc import Callable, Iterator
from typing import Final

from faults.checker import check
from sim.clients.ends import find_wrong_ends
from sim.clients.producer import Producer
from sim.clients.reader import Reader
from sim.clients.wire import Place
from sim.cluster import Cluster
from sim.plan import Plan
from sim.process import ClientProcess
from sim.scene import Violation
from sim.workload import TopicWanted, Workload, raise_unless_clean

TOPIC: Final = "log"
COMPACTED: Final = "state"
_KEYS: Final = 12


def wait_seconds(plan: Plan) -> float:
    """How long a reader waits for the next record: longer where there are few."""
    return max(0.5, plan.pause_seconds)


class Logs(Workload):
    """Idempotent producers, and one reader of each partition."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.places: list[Place] = [(TOPIC, index) for index in range(self.plan.partitions)]
        self._readers: list[tuple[Reader, ClientProcess]] = []

    def topics(self) -> list[TopicWanted]:
        kept = self.plan.retention_bytes
        configs = {"retention.bytes": str(kept)} if kept else {}
        return [TopicWanted(TOPIC, self.plan.partitions, configs)]

    def begin(self) -> None:
        scene, plan = self.scene, self.plan
        for number in range(1, plan.producers + 1):
            process = scene.process(f"p{number}")
            producer = Producer(scene, process, self.places, pause_seconds=plan.pause_seconds)
            process.run(producer.run())
        for place in self.places:
            process = scene.process(f"c{place[1]}")
            reader = Reader(scene, process, place, wait_seconds=wait_seconds(plan))
            self._readers.append((reader, process))
            process.run(reader.run())

    def stages(self) -> Iterator[Callable[[], None]]:
        yield self._finish_readers

    def _finish_readers(self) -> None:
        for reader, process in self._readers:
            process.run(reader.finish())

    def judge(self) -> None:
        raise_unless_clean("", check(self.scene.history))
        if wrong := list(find_wrong_ends(self.scene.history)):
            raise Violation(f"{len(wrong)} ends, e.g. {wrong[0]}")


class Compacted(Workload):
    """Producers of keys, of which only the last of each must stay."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._history = self.scene.new_history("compacted")

    def topics(self) -> list[TopicWanted]:
        if not self.plan.keyed:
            return []
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": "2048",
            "segment.ms": "3000",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "5000",
        }
        return [TopicWanted(COMPACTED, 1, configs)]

    def begin(self) -> None:
        for number in range(1, self.plan.keyed + 1):
            process = self.scene.process(f"k{number}")
            producer = Producer(
                self.scene,
                process,
                [(COMPACTED, 0)],
                pause_seconds=self.plan.pause_seconds,
                keys=_KEYS,
                history=self._history,
            )
            process.run(producer.run())
        if self.plan.keyed:
            process = self.scene.process("kc")
            reader = Reader(
                self.scene,
                process,
                (COMPACTED, 0),
                history=self._history,
                wait_seconds=wait_seconds(self.plan),
            )
            process.run(reader.run())

    def stages(self) -> Iterator[Callable[[], None]]:
        if self.plan.keyed:
            yield self._read_again

    def _read_again(self) -> None:
        """By somebody who sees only what compaction has left: who follows a topic may miss that a
        key was removed, if it is late."""
        process = self.scene.process("kf")
        process.run(Reader(self.scene, process, (COMPACTED, 0), history=self._history).finish())

    def judge(self) -> None:
        raise_unless_clean("compacted", check(self._history))
