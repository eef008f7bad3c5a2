"""The brokers of a simulated world: how they are configured, and how they come and go.

Faults and clients act on them here; `world.py` runs the whole.
"""

import random
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from moldau.log.secret_file import SECRET_BYTES, ClusterSecret, write_secret
from moldau.model.errors import ConfigError, CorruptionError, StorageError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import PartitionIndex, TopicId
from moldau.model.topology import Endpoint
from moldau.server.broker import BrokerServer
from moldau.server.config.coordination_schema import GroupConfig, QueueConfig, TransactionConfig
from moldau.server.config.schema import (
    GrpcConfig,
    HttpConfig,
    KafkaConfig,
    RaftConfig,
    ServerConfig,
    StorageConfig,
    TopicConfig,
)
from moldau.server.run import EXIT_STORAGE
from sim.invariants import Invariants
from sim.knobs import FAR, configured
from sim.network import Network, Rates
from sim.node import Node, Process
from sim.plan import Plan
from sim.rot import Rot
from sim.scene import Scene
from sim.scheduler import START, Scheduler

KAFKA_PORT: Final = 9092
RAFT_PORT: Final = 19092
HTTP_PORT: Final = 8080
GRPC_PORT: Final = 8000
_RESTART_SECONDS: Final = 1.0


class Cluster:
    """Brokers on one network, and what was noted of them."""

    def __init__(self, plan: Plan, histories: Path | None = None) -> None:
        self.plan = plan
        seed = str(plan.seed)
        self.scheduler = Scheduler()
        rates = FAR if "far" in plan.knobs else Rates()
        self.network = Network(self.scheduler, random.Random(f"{seed}/net"), rates)
        # Headers have uvicorn's date, and metrics how long requests really took.
        self.network.dated_ports = frozenset({HTTP_PORT})
        self.lines: list[str] | None = None
        """What happened, for people; None: nobody wants to know."""
        self.counts: Counter[str] = Counter()
        self.secret = ClusterSecret(random.Random(f"{seed}/secret").randbytes(SECRET_BYTES))
        """Each directory has it from the beginning: no broker needs a token."""
        self.nodes = [self._node(number) for number in range(1, plan.brokers + 1)]
        self._retired: list[Node] = []
        self._numbers = plan.brokers
        self._is_bootstrapped = False
        self.rotten: set[Node] = set()
        """Whose metadata are damaged: they may refuse to start."""
        self._bootstrap = [(node.address, KAFKA_PORT) for node in self.nodes]
        self.scene = Scene(self.scheduler, self.network, seed, self._bootstrap, histories)
        self.invariants = Invariants(self.scene, self.nodes, self.say)
        self.trace = 0

    def _node(self, number: int, *, is_named: bool = True) -> Node:
        node = Node(
            name=f"broker-{number}",
            address=f"10.0.0.{number}",
            scheduler=self.scheduler,
            network=self.network,
            config=lambda: self._config(number, is_named=is_named),
            seed=str(self.plan.seed),
            flush_seconds=self.plan.flush_seconds,
            on_end=self._ended,
            on_made=self._made,
        )
        write_secret(node.disk, self.secret)
        return node

    def _config(self, number: int, *, is_named: bool) -> ServerConfig:
        address = f"10.0.0.{number}"
        member = next((node for node in self.nodes if node.address != address), self.nodes[0])
        is_first = number == 1
        # With the flag left in its settings a broker would bootstrap again when its disk is lost.
        is_bootstrap_broker = is_first and not self._is_bootstrapped
        config = ServerConfig(
            data_dir="/sim",
            broker_id=number if is_named else None,
            machine=self.plan.machine_of(number),
            bootstrap=is_bootstrap_broker,
            join_addr=None if is_first else Endpoint(member.address, HTTP_PORT),
            kafka=KafkaConfig(addr=Endpoint(address, KAFKA_PORT)),
            raft=RaftConfig(addr=Endpoint(address, RAFT_PORT)),
            http=HttpConfig(addr=Endpoint(address, HTTP_PORT)),
            grpc=GrpcConfig(addr=Endpoint(address, GRPC_PORT) if self.plan.has_queues else None),
            log=StorageConfig(
                flush=FlushPolicy(self.plan.flush),
                segment_bytes=self.plan.segment_bytes,
                disk_reserve_bytes=0,
                scrub_interval_ms=5_000,
                compaction_check_ms=1_000,
                retention_check_ms=2_000,
            ),
            topic=TopicConfig(auto_create=False),
            group=GroupConfig(
                offsets_partitions=2,
                initial_rebalance_delay_ms=200,
                session_timeout_ms_min=1_000,
                consumer_heartbeat_interval_ms=400,
                consumer_session_timeout_ms=6_000,
            ),
            transaction=TransactionConfig(state_partitions=2),
            queue=QueueConfig(state_partitions=2),
        )
        return configured(config, self.plan.knobs)

    # ---- what happens

    def reported(self, what: str, node: Node | None) -> None:
        self.counts[what.split(" to ")[0]] += 1
        self.note(node.name if node is not None else "world", what)

    def note(self, who: str, what: str) -> None:
        self.trace = zlib.crc32(f"{self.scheduler.now:.9f} {who} {what}".encode(), self.trace)
        self.say(who, what)

    def say(self, who: str, what: str) -> None:
        """For people alone."""
        if self.lines is not None:
            self.lines.append(f"{self.scheduler.now - START:10.4f}  {who:10}  {what}")

    # ---- brokers that come and go

    def start(self, node: Node) -> None:
        if not node.is_running and node not in self._retired:
            self.note(node.name, "start")
            node.start()

    def _made(self, node: Node, server: BrokerServer) -> None:
        assert node.process is not None
        self.invariants.watch(node)
        drop_log = server._storage.drop_log

        def drop(topic: str, topic_id: TopicId, index: PartitionIndex) -> None:
            self.invariants.dropping(node, topic, topic_id, index)
            drop_log(topic, topic_id, index)

        server._storage.drop_log = drop  # type: ignore[assignment,method-assign]
        node.process.loop.after_turn = lambda: self.invariants.after(node, server)

    def add_node(self, *, is_named: bool) -> Node:
        """A new broker, which joins; `is_named`: it says which number it wants."""
        self._numbers += 1
        node = self._node(self._numbers, is_named=is_named)
        self.nodes.append(node)
        # Those of the beginning may all leave.
        self._bootstrap.append((node.address, KAFKA_PORT))
        self.reported("join", node)
        self.scheduler.after(0.0, lambda: self.start(node))
        return node

    def retire(self, node: Node) -> None:
        """It is removed, and does not start again."""
        self.nodes.remove(node)
        self._retired.append(node)
        self.reported("retire", node)
        self.scheduler.after(0.0, node.kill)

    def wipe(self, node: Node) -> None:
        """Its disk is lost: nobody will be this broker again."""
        self.nodes.remove(node)
        self._retired.append(node)
        self.reported("wipe", node)

        def lose() -> None:
            node.wipe()
            self.invariants.forget(node)

        self.scheduler.after(0.0, lose)

    def start_without_disk(self, node: Node) -> None:
        """Somebody starts a broker that was wiped as always: it must refuse."""
        self.reported("start without its disk", node)
        write_secret(node.disk, self.secret)
        node.start()

    def restart(self, node: Node, seconds: float) -> None:
        """Killed, and away for so long."""
        self.reported("kill", node)
        node.kill()
        self.scheduler.after(seconds, lambda: self.start(node))

    def lose_log(self, node: Node, folder: str) -> None:
        """Somebody deletes one log while its broker is down, for good: half of it would come back
        with a power cut, and nobody could tell that from the whole."""
        self.reported("lost log", node)
        node.kill()
        if node.disk.exists(folder):
            node.disk.remove_tree(folder)
            node.disk.sync_dir(folder.rpartition("/")[0])
        self.scheduler.after(node.rng.random() * 2, lambda: self.start(node))

    def rot(self, node: Node, flip: Callable[[], Rot | None]) -> Rot | None:
        """Its files change while it is down."""
        self.reported("rot", node)
        node.kill()
        rot = flip()
        self.note(node.name, f"rotten: {rot and rot.path} {rot and rot.byte}")
        self.scheduler.after(node.rng.random() * 2, lambda: self.start(node))
        return rot

    def _ended(self, node: Node, process: Process) -> None:
        """A process ended by itself, which is right only if its disk failed or it had to."""
        code, failure = process.exit_code, process.failure
        self.note(node.name, f"ended with {code}{f': {failure!r}' if failure else ''}")
        may_fail = isinstance(failure, (StorageError, ConfigError)) or (
            isinstance(failure, CorruptionError) and node in self.rotten
        )
        if code not in (0, EXIT_STORAGE, None) and not may_fail:
            self.scene.violation(f"{node.name} ended with {code}: {failure!r}")
        if code == EXIT_STORAGE and not process.has_disk_failed:
            self.scene.violation(f"{node.name} blames a disk that is sound")
        if code in (0, EXIT_STORAGE) and process.internal_errors:
            self.scene.violation(
                f"{node.name} ended with {code} and {process.internal_errors[0]!r}"
            )
        seconds = _RESTART_SECONDS * (0.5 + node.rng.random())
        self.scheduler.after(seconds, lambda: self.start(node))
