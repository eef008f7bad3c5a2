"""The actor that breaks things, at times and places drawn by the seed."""

import random
from collections.abc import Callable

from msgspec.structs import replace

from sim.cluster import Cluster
from sim.node import Node
from sim.simdisk import CAPACITY_BYTES, SimCrash


class Faults:
    """Begins with `begin`; `heal` takes back all that can be taken back."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = random.Random()
        """Of the fault at hand: one that is left out changes nothing about the others."""
        self._times: dict[str, random.Random] = {}
        self.faults_total = 0
        self._is_over = False
        self._calm = cluster.network.rates
        self._deeds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "power": self._power,
            "power-in-write": self._power_in_write,
            "stop": self._stop,
            "pause": self._pause,
            "isolate": self._isolate,
            "cut": self._cut,
            "break": self._break,
            "slow-network": self._slow,
            "stall": self._stall,
            "flush-error": self._flush_error,
            "full-disk": self._full_disk,
            "blackout": self._blackout,
            "skew": self._skew,
            "forsake": self._forsake,
        }

    def begin(self) -> None:
        plan = self._cluster.plan
        for kind, seconds in plan.faults.items():
            self._times[kind] = random.Random(f"{plan.seed}/{kind}")
            self._plan(kind, seconds)

    def _plan(self, kind: str, seconds: float) -> None:
        self._cluster.scheduler.after(
            self._times[kind].expovariate(1 / seconds), lambda: self._do(kind, seconds)
        )

    def _do(self, kind: str, seconds: float) -> None:
        if self._is_over:
            return
        plan = self._cluster.plan
        self.faults_total += 1
        if self.faults_total not in plan.left_out:
            self._rng = random.Random(f"{plan.seed}/fault/{self.faults_total}")
            self._deeds[kind]()
        self._plan(kind, seconds)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        """Also when all is healed meanwhile: it takes a fault back."""
        self._cluster.scheduler.after(self._rng.random() * 2 * seconds, action)

    def _running(self) -> Node | None:
        running = [node for node in self._cluster.nodes if node.is_running]
        return self._rng.choice(running) if running else None

    def heal(self) -> None:
        cluster = self._cluster
        self._is_over = True
        cluster.network.heal()
        cluster.network.rates = self._calm
        for node in cluster.nodes:
            node.disk_rates.stall_share = 0.0
            node.disk.capacity_bytes = CAPACITY_BYTES
            node.disk.on_step = None
            node.disk.forget_faults()
            node.set_skew(0)
            if node.process is not None:
                node.process.loop.paused_until = 0.0
            else:
                cluster.start(node)

    # ---- processes

    def _down(self, node: Node) -> None:
        seconds = self._rng.random() * 2 * self._cluster.plan.down_seconds
        self._cluster.scheduler.after(seconds, lambda: self._cluster.start(node))

    def _kill(self) -> None:
        if (node := self._running()) is not None:
            self._cluster.reported("kill", node)
            node.kill()
            self._down(node)

    def _power(self) -> None:
        if (node := self._running()) is not None:
            self._cluster.reported("power cut", node)
            node.power_off()
            self._down(node)

    def _blackout(self) -> None:
        """Of the whole cluster."""
        self._cluster.reported("blackout", None)
        for node in self._cluster.nodes:
            node.power_off()
            self._down(node)

    def _power_in_write(self) -> None:
        """Before one of the next changes to its disk."""
        node = self._running()
        if node is None:
            return
        left = self._rng.randrange(1, 40)

        def step(_: str) -> None:
            nonlocal left
            left -= 1
            if left > 0:
                return
            self._cluster.reported("power cut in a write", node)
            node.power_off()
            self._down(node)
            raise SimCrash("the power is cut")

        node.disk.on_step = step

    def _stop(self) -> None:
        if (node := self._running()) is not None:
            self._cluster.reported("stop", node)
            node.stop()

    def _pause(self) -> None:
        if (node := self._running()) is not None:
            self._cluster.reported("pause", node)
            node.pause(self._rng.choice((0.3, 3.0, 12.0)) * self._rng.random())

    def _skew(self) -> None:
        """Its wall clock jumps."""
        if (node := self._running()) is not None:
            self._cluster.reported("clock jump", node)
            node.set_skew(self._rng.choice((-1, 1)) * self._rng.choice((50, 3000, 3_600_000)))

    # ---- the network

    def _isolate(self) -> None:
        """From the other brokers; clients may still reach it."""
        nodes = self._cluster.nodes
        node = self._rng.choice(nodes)
        self._cluster.reported("isolate", node)
        cut = self._ways(node)
        if self._rng.random() < 0.3:
            for process in self._cluster.scene.processes:
                cut += [(process.address, node.address), (node.address, process.address)]
        self._later(self._rng.choice((1.0, 5.0, 15.0)), self._part(cut))

    def _forsake(self) -> None:
        """It stands still while the others elect new leaders, and then goes on among its clients
        without having heard of that."""
        if (node := self._running()) is None:
            return
        self._cluster.reported("forsake", node)
        seconds = 1.0 + self._rng.random() * 4
        node.pause(seconds)
        join = self._part(self._ways(node))
        self._cluster.scheduler.after(seconds + self._rng.random() * 4, join)

    def _ways(self, node: Node) -> list[tuple[str, str]]:
        """Between it and the other brokers, both ways."""
        others = [other.address for other in self._cluster.nodes if other is not node]
        there = [(node.address, other) for other in others]
        return there + [(other, node.address) for other in others]

    def _part(self, cut: list[tuple[str, str]]) -> Callable[[], None]:
        """Returns what takes it back."""
        network = self._cluster.network
        for source, target in cut:
            network.cut(source, target)

        def join() -> None:
            for source, target in cut:
                network.join(source, target)

        return join

    def _cut(self) -> None:
        """One way only."""
        nodes = self._cluster.nodes
        if len(nodes) < 2:
            return
        source, target = self._rng.sample(nodes, 2)
        self._cluster.reported(f"cut to {target.name}", source)
        network = self._cluster.network
        network.cut(source.address, target.address)
        self._later(
            self._rng.choice((1.0, 5.0, 15.0)),
            lambda: network.join(source.address, target.address),
        )

    def _break(self) -> None:
        network = self._cluster.network
        connections = network.connections()
        if connections:
            self._cluster.reported("break connections", None)
            chosen = self._rng.sample(connections, min(len(connections), self._rng.randint(1, 3)))
            network.break_some(chosen, self._rng)

    def _slow(self) -> None:
        network = self._cluster.network
        self._cluster.reported("slow network", None)
        network.rates = replace(
            self._calm,
            slow_share=self._rng.choice((0.01, 0.2)),
            slow_seconds=self._rng.choice((0.05, 0.5, 2.0)),
            window_bytes=self._rng.choice((2000, 20_000, 256 * 1024)),
        )

        def calm() -> None:
            network.rates = self._calm

        self._later(5.0, calm)

    # ---- disks

    def _stall(self) -> None:
        node = self._rng.choice(self._cluster.nodes)
        self._cluster.reported("slow disk", node)
        node.disk_rates.stall_share = self._rng.choice((0.02, 0.3))

        def calm() -> None:
            node.disk_rates.stall_share = 0.0

        self._later(5.0, calm)

    def _flush_error(self) -> None:
        if (node := self._running()) is not None:
            self._cluster.reported("flush error", node)
            node.disk.fail_next_flush()

    def _full_disk(self) -> None:
        node = self._rng.choice(self._cluster.nodes)
        self._cluster.reported("full disk", node)
        node.disk.capacity_bytes = node.disk.used_bytes + self._rng.choice((0, 100, 5000))

        def room() -> None:
            node.disk.capacity_bytes = CAPACITY_BYTES

        self._later(4.0, room)
