"""A simulated world: brokers, clients and faults under one seed, and the verdict on them.

    world = World(Plan.draw(seed=7))
    world.run()      # raises Violation

Faults for a while, with clients at work throughout; then all is healed, and everything has to come
to its end within a bounded time: a world that stands still is a failure. Each kind of clients is
judged by what it saw.
"""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from sim.clients.forgotten import Forgotten
from sim.clients.groups import Groups
from sim.clients.logs import Compacted, Logs
from sim.clients.operations import Operations
from sim.clients.queues import Queues
from sim.clients.transactions import Transactions
from sim.clients.wire import Lost
from sim.cluster import Cluster
from sim.faults import Faults
from sim.knobs import turned
from sim.plan import Plan
from sim.process import ClientProcess
from sim.scene import Violation
from sim.scheduler import START
from sim.soundness import Soundness
from sim.workload import TopicWanted, Workload

SETTLE_SECONDS: Final = 180.0
"""So long may it take, after all is healed, until everything has come to its end."""
_COPIES: Final = 3
"""Of what the brokers keep for themselves."""
_COLLECT_EVENTS: Final = 100_000
_LOOK_EVENTS: Final = 64
_WORKLOADS: Final = (Logs, Compacted, Transactions, Queues, Operations, Groups, Forgotten)


class World(Cluster):
    """One cluster, and everything around it."""

    def __init__(self, plan: Plan, histories: Path | None = None) -> None:
        super().__init__(plan, histories)
        self.soundness = Soundness(self.scene, self.nodes)
        self.faults = Faults(self)
        self.workloads: list[Workload] = [kind(self) for kind in _WORKLOADS]
        self.began_at = 0.0
        """When the faults began, in seconds since the beginning."""

    def run(self) -> None:
        """Raises Violation."""
        with turned(self.plan.knobs):
            self._run()

    def _run(self) -> None:
        collecting = gc.isenabled()
        gc.disable()
        try:
            self.begin()
            self.began_at = self.scheduler.now - START
            self.faults.begin()
            self.run_for(self.plan.seconds)
            self.settle()
            for workload in self.workloads:
                workload.judge()
        finally:
            self.close()
            if collecting:
                gc.enable()

    def close(self) -> None:
        """End all that still runs."""
        for node in (*self.nodes, *self._retired):
            node.kill()
        for process in self.scene.processes:
            process.kill()

    def begin(self) -> None:
        """Start everybody, and wait until the cluster serves."""
        bootstrap_brokers = self.nodes[: self.plan.bootstrap_brokers or None]
        for node in bootstrap_brokers:
            self.start(node)
        self.wait(
            lambda: all(node.is_ready for node in bootstrap_brokers), "the cluster did not start"
        )
        self._is_bootstrapped = True
        if self.plan.bootstrap_brokers:
            self._grow()
        process = self.scene.process("topics")
        wanted = [topic for workload in self.workloads for topic in workload.topics()]
        created = process.run(self._create_topics(process, wanted))
        self.wait(created.done, "the topics were not created")
        for workload in self.workloads:
            workload.begin()

    def _grow(self) -> None:
        """The other brokers join a cluster that is in use."""
        process = self.scene.process("coordinators")
        found = process.run(self._find_coordinators(process))
        self.wait(found.done, "no coordinator was elected")
        for node in self.nodes:
            self.start(node)
        self.wait(lambda: all(node.is_ready for node in self.nodes), "brokers did not join")

    async def _find_coordinators(self, process: ClientProcess) -> None:
        kafka = self.scene.kafka(process)
        for kind in (0, 1):
            while True:
                try:
                    await kafka.coordinator(kind, "early")
                    break
                except Lost:
                    await self.scene.pause(process.rng, 0.3)

    def _are_internals_spread(self) -> bool:
        """Whether the broker's own topics have as many copies as there are brokers for."""
        for node in self.nodes:
            if node.is_ready and node.server is not None:
                image = node.server._metadata.image
                copies = min(_COPIES, len(image.active_brokers()))
                for topic in image.topics.values():
                    few = (len(each.replicas) < copies for each in topic.partitions)
                    if topic.internal and any(few):
                        return False
        return True

    async def _create_topics(self, process: ClientProcess, wanted: list[TopicWanted]) -> None:
        kafka = self.scene.kafka(process)
        copies = self.plan.replication
        usual = {"min.insync.replicas": str(min(2, copies))}
        topics = [
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=copies,
                configs=[
                    CreatableTopicConfig(name=name, value=value)
                    for name, value in {**usual, **topic.configs}.items()
                ],
            )
            for topic in wanted
        ]
        done = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        while True:
            try:
                await kafka.refresh()
                answer = await kafka.ask_any(CreateTopicsRequest(topics=topics, timeout_ms=5000))
                if all(topic.error_code in done for topic in answer.topics):
                    return
            except Lost:
                pass
            await self.scene.pause(process.rng, 0.3)

    def settle(self) -> None:
        """Heal everything; clients finish what they have begun."""
        self.note("world", "heal")
        self.faults.heal()
        self.scene.healed_at = self.scheduler.now
        self.scene.is_over = True
        self.wait(self._are_clients_done, "clients did not finish")
        self.wait(lambda: all(node.is_ready for node in self.nodes), "brokers are not ready")
        for workload in self.workloads:
            for finish in workload.stages():
                finish()
                self.wait(self._are_clients_done, "clients did not come to their ends")
        self.wait(self.invariants.are_copies_whole, "replicas did not catch up")
        self.wait(self.invariants.are_voters_spread, "one machine has a majority of the voters")
        self.wait(self._are_internals_spread, "topics of the brokers themselves have few copies")

    def _are_clients_done(self) -> bool:
        return all(process.is_done for process in self.scene.processes)

    def run_for(self, seconds: float) -> None:
        end = self.scheduler.now + seconds
        while self.scheduler.now < end:
            self._step()

    def wait(self, is_done: Callable[[], bool], failure: str) -> None:
        end = self.scheduler.now + SETTLE_SECONDS
        while not is_done():
            if self.scheduler.now > end:
                left = [
                    f"{process.name} at {', '.join(process.waits_at())}"
                    for process in self.scene.processes
                    if not process.is_done
                ]
                left += [node.name for node in self.nodes if not node.is_ready]
                raise Violation(f"{failure} within {SETTLE_SECONDS:g} s: {'; '.join(left)}")
            self._step()

    def _step(self) -> None:
        scheduler = self.scheduler
        if not scheduler.step():
            raise Violation("nothing will ever happen again")
        if self.scene.found:
            raise Violation(self.scene.found[0])
        if scheduler.events % _COLLECT_EVENTS == 0:
            gc.collect()
        if scheduler.events % _LOOK_EVENTS == 0:
            self._look()

    def _look(self) -> None:
        """Whether something failed that nobody waits for."""
        self.soundness.look()
        for node in self.nodes:
            process = node.process
            if process is not None and process.exceptions:
                context = process.exceptions[0]
                text = f"{context.get('message')}: {context.get('exception')!r}"
                raise Violation(f"{node.name}: {text}")
        for client in self.scene.processes:
            if client.failures:
                failure = client.failures[0]
                raise Violation(f"{client.name} ended: {failure!r}") from failure
