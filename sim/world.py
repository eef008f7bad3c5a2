"""Owns a simulated world: brokers, clients and faults under one seed, and the verdict on them.

    world = World(Plan.draw(seed=7))
    world.run()      # raises Violation

Faults for a while, with clients at work throughout; then all is healed, and everything has to come
to its end within a bounded time: a world that stands still is a failure. The history of what the
clients saw is judged by faults/checker.py.
"""

import gc
import random
import zlib
from collections import Counter
from typing import Final

from faults.checker import check
from moldau.server.broker import BrokerServer
from moldau.server.config.schema import (
    Address,
    GroupConfig,
    GrpcConfig,
    HttpConfig,
    KafkaConfig,
    QueueConfig,
    RaftConfig,
    ServerConfig,
    StorageConfig,
    TopicConfig,
    TransactionConfig,
)
from moldau.server.run import EXIT_STORAGE
from moldau.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from sim.clients.producer import Producer
from sim.clients.reader import Reader
from sim.clients.transactions import Transactions
from sim.clients.wire import Lost
from sim.faults import Faults
from sim.invariants import Invariants
from sim.network import Network, Rates
from sim.node import Node, Process
from sim.plan import Plan
from sim.scene import Scene, Violation
from sim.scheduler import START, Scheduler

SETTLE_SECONDS: Final = 180.0
"""So long may it take, after all is healed, until everything has come to its end."""
_RESTART_SECONDS: Final = 1.0
_COLLECT_EVENTS: Final = 100_000
TOPIC: Final = "log"


class World:
    """One cluster, and everything around it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        seed = str(plan.seed)
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, random.Random(f"{seed}/net"), Rates())
        self.lines: list[str] | None = None
        """What happened, for people; None: nobody wants to know."""
        self.counts: Counter[str] = Counter()
        self.nodes = [self._node(number) for number in range(1, plan.brokers + 1)]
        bootstrap = [(node.address, 9092) for node in self.nodes]
        self.scene = Scene(self.scheduler, self.network, seed, bootstrap)
        self.invariants = Invariants(self)
        self.faults = Faults(self)
        self.places = [(TOPIC, index) for index in range(plan.partitions)]
        self._readers: list[Reader] = []
        self._transactions = Transactions(plan, self.scene)
        self.trace = 0
        self.began_at = 0.0
        """When the faults began."""

    def _node(self, number: int) -> Node:
        return Node(
            name=f"broker-{number}",
            address=f"10.0.0.{number}",
            scheduler=self.scheduler,
            network=self.network,
            config=lambda: self._config(number),
            seed=str(self.plan.seed),
            on_end=self._ended,
            on_made=self._made,
        )

    def _config(self, number: int) -> ServerConfig:
        address = f"10.0.0.{number}"
        is_first = number == 1
        return ServerConfig(
            data_dir="/sim",
            broker_id=number,
            bootstrap=is_first,
            join_addr=None if is_first else Address("10.0.0.1", 8080),
            kafka=KafkaConfig(addr=Address(address, 9092)),
            raft=RaftConfig(addr=Address(address, 19092)),
            http=HttpConfig(addr=Address(address, 8080)),
            grpc=GrpcConfig(addr=None),
            log=StorageConfig(segment_bytes=self.plan.segment_bytes, disk_reserve_bytes=0),
            topic=TopicConfig(auto_create=False),
            group=GroupConfig(offsets_partitions=2, initial_rebalance_delay_ms=200),
            transaction=TransactionConfig(state_partitions=2),
            queue=QueueConfig(state_partitions=2),
        )

    # ---- what happens

    def told(self, what: str, node: Node | None) -> None:
        self.counts[what.split(" to ")[0]] += 1
        self.note(node.name if node is not None else "world", what)

    def note(self, who: str, what: str) -> None:
        self.trace = zlib.crc32(f"{self.scheduler.now:.9f} {who} {what}".encode(), self.trace)
        self.say(who, what)

    def say(self, who: str, what: str) -> None:
        """For people alone."""
        if self.lines is not None:
            self.lines.append(f"{self.scheduler.now - START:10.4f}  {who:10}  {what}")

    def start(self, node: Node) -> None:
        if not node.is_running:
            self.note(node.name, "start")
            node.start()

    def _made(self, node: Node, server: BrokerServer) -> None:
        assert node.process is not None
        self.invariants.watch(node, server)
        node.process.loop.after_turn = lambda: self.invariants.after(node, server)

    def node_of(self, broker: int) -> Node | None:
        """The node that runs, or last ran, as that broker."""
        return next((node for node in self.nodes if node.number == broker), None)

    def _ended(self, node: Node, process: Process) -> None:
        """A process ended by itself, which is right only if its disk failed or it was told to."""
        code, failure = process.exit_code, process.failure
        self.note(node.name, f"ended with {code}{f': {failure!r}' if failure else ''}")
        if code not in (0, EXIT_STORAGE, None) and not self._may_fail(failure):
            self.scene.violation(f"{node.name} ended with {code}: {failure!r}")
        seconds = _RESTART_SECONDS * (0.5 + node.rng.random())
        self.scheduler.after(seconds, lambda: self.start(node))

    def _may_fail(self, failure: BaseException | None) -> bool:
        from moldau.model.errors import ConfigError, StorageError

        return isinstance(failure, (StorageError, ConfigError))

    # ---- the run

    def run(self) -> None:
        """Raises Violation."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._run()
        finally:
            self.close()
            if collecting:
                gc.enable()

    def close(self) -> None:
        """End all that still runs."""
        for node in self.nodes:
            node.kill()
        for process in self.scene.processes:
            process.kill()

    def _run(self) -> None:
        self.begin()
        self.began_at = self.scheduler.now - START
        self.faults.begin()
        self._until(self.plan.seconds)
        self.settle()
        self.judge()

    def begin(self) -> None:
        """Start everybody, and wait until the cluster serves."""
        for node in self.nodes:
            self.start(node)
        self._wait(lambda: all(node.is_ready for node in self.nodes), "the cluster did not start")
        admin = self.scene.process("admin")
        created = admin.run(self._create_topics(admin))
        self._wait(created.done, "no topic was created")
        self._begin_clients()

    async def _create_topics(self, process) -> None:  # type: ignore[no-untyped-def]
        kafka = self.scene.kafka(process)
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=self.plan.replication,
                configs=[
                    CreatableTopicConfig(
                        name="min.insync.replicas", value=str(min(2, self.plan.replication))
                    )
                ],
            )
            for name, partitions in {
                TOPIC: self.plan.partitions,
                **self._transactions.topics(),
            }.items()
        ]
        while True:
            try:
                await kafka.refresh()
                answer = await kafka.ask_any(CreateTopicsRequest(topics=topics, timeout_ms=5000))
                if all(topic.error_code in (0, 36) for topic in answer.topics):
                    return
            except Lost:
                pass
            await self.scene.pause(process.rng, 0.3)

    def _begin_clients(self) -> None:
        for number in range(1, self.plan.producers + 1):
            process = self.scene.process(f"p{number}")
            process.run(
                Producer(
                    self.scene, process, self.places, pause_seconds=self.plan.pause_seconds
                ).run()
            )
        for place in self.places:
            process = self.scene.process(f"c{place[1]}")
            reader = Reader(self.scene, process, place)
            self._readers.append(reader)
            process.run(reader.run())
        self._transactions.begin()

    def settle(self) -> None:
        """Heal everything; whoever has something to finish does so."""
        self.note("world", "heal")
        self.faults.heal()
        self.scene.is_over = True
        self._wait(
            lambda: all(process.is_done for process in self.scene.processes),
            "clients did not finish",
        )
        self._wait(lambda: all(node.is_ready for node in self.nodes), "brokers are not ready")
        for finish in (*self._transactions.stages(), self._finish_readers):
            finish()
            self._wait(
                lambda: all(process.is_done for process in self.scene.processes),
                "the partitions could not be read to their ends",
            )

    def _finish_readers(self) -> None:
        for reader, process in zip(self._readers, self._reader_processes(), strict=True):
            process.run(reader.finish())

    def _reader_processes(self):  # type: ignore[no-untyped-def]
        return [p for p in self.scene.processes if p.name.startswith("c") and p.name[1:].isdigit()]

    def judge(self) -> None:
        """Raises Violation."""
        verdict = check(self.scene.history)
        if not verdict.clean:
            found = "; ".join(
                f"{anomaly}: {count}, e.g. {verdict.examples[anomaly][0]}"
                for anomaly, count in verdict.found.items()
            )
            raise Violation(found)
        self._transactions.judge()

    def _until(self, seconds: float) -> None:
        end = self.scheduler.now + seconds
        while self.scheduler.now < end:
            self._step()

    def _wait(self, is_done, failure: str) -> None:  # type: ignore[no-untyped-def]
        end = self.scheduler.now + SETTLE_SECONDS
        while not is_done():
            if self.scheduler.now > end:
                left = "; ".join(
                    f"{process.name} at {', '.join(process.waits_at())}"
                    for process in self.scene.processes
                    if not process.is_done
                )
                raise Violation(f"{failure} within {SETTLE_SECONDS:g} s: {left}")
            self._step()

    def _step(self) -> None:
        scheduler = self.scheduler
        if not scheduler.step():
            raise Violation("nothing will ever happen again")
        if self.scene.found:
            raise Violation(self.scene.found[0])
        if scheduler.events % _COLLECT_EVENTS == 0:
            gc.collect()
        if scheduler.events % 64 == 0:
            self._look()

    def _look(self) -> None:
        for node in self.nodes:
            process = node.process
            if process is not None and process.exceptions:
                context = process.exceptions[0]
                raise Violation(
                    f"{node.name}: {context.get('message')}: {context.get('exception')!r}"
                )
        for client in self.scene.processes:
            if client.failures:
                raise Violation(
                    f"{client.name} ended: {client.failures[0]!r}"
                ) from client.failures[0]
