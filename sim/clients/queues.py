"""All who use work queues in one world, and the verdict on them."""

from sim.clients import queue_verdict
from sim.clients.queue_admin import QueueAdmin
from sim.clients.queue_sender import Sender
from sim.clients.queue_worker import TOPIC, Board, OrderedWorker, Worker
from sim.cluster import GRPC_PORT, Cluster
from sim.scene import Violation
from sim.workload import TopicWanted, Workload


class Queues(Workload):
    """Senders, workers of both modes, and somebody who looks after the groups."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._board = Board(self._addresses, self.plan.partitions)

    def _addresses(self) -> list[str]:
        return [f"{node.address}:{GRPC_PORT}" for node in self.cluster.nodes]

    def topics(self) -> list[TopicWanted]:
        return [TopicWanted(TOPIC, self.plan.partitions)] if self.plan.has_queues else []

    def begin(self) -> None:
        if not self.plan.has_queues:
            return
        plan, scene, board = self.plan, self.scene, self._board
        for number in range(1, plan.queue_senders + 1):
            process = scene.process(f"s{number}")
            process.run(Sender(scene, process, board, pause_seconds=plan.pause_seconds + 0.1).run())
        for number in range(1, plan.queue_workers + 1):
            process = scene.process(f"q{number}")
            process.run(Worker(scene, process, board).run())
        for number in range(1, plan.ordered_workers + 1):
            process = scene.process(f"o{number}")
            process.run(OrderedWorker(scene, process, board).run())
        process = scene.process("queue-admin")
        queue_admin = QueueAdmin(
            scene,
            process,
            board,
            has_queue=plan.queue_workers > 0,
            has_ordered=plan.ordered_workers > 0,
        )
        process.run(queue_admin.run())

    def judge(self) -> None:
        if wrong := queue_verdict.judge(
            self.scene.history, self._board, self.cluster.invariants.elected
        ):
            raise Violation("; ".join(wrong[:5]))
