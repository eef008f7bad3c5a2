"""The scenario of everything at once: kills, pauses and cuts that overlap, drawn by a seed."""

import random
import time
from collections import Counter
from collections.abc import Callable

from faults.network import name_of
from faults.nodes import Node
from faults.run import Load, Run
from faults.scenarios.three.disks import VolatileDisks
from faults.scenarios.three.processes import BROKERS, everything

LOAD = Load(partitions=6, replication=3, rate=200.0, record_bytes=500, members=2, raw=True)
_STEP_SECONDS = 1.0
_HEALED_SECONDS_MAX = 60.0


class Mixture:
    """What is broken now, and what is broken or repaired next."""

    def __init__(self, run: Run, rng: random.Random, disks: VolatileDisks | None) -> None:
        """With `disks` it is not processes that die but machines that lose power."""
        self._run = run
        self._rng = rng
        self._disks = disks
        self._down: list[Node] = []
        self._paused: list[Node] = []
        self._is_cut = False
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        self.expect_alive()
        broken = len(self._down) + len(self._paused) + self._is_cut
        # The more is broken the sooner something is repaired, but sometimes all of it is.
        if broken and self._rng.random() < 0.3 + 0.15 * broken:
            self._repair()
        else:
            self._break()

    def expect_alive(self) -> None:
        """Nobody ends by itself."""
        for node in self._run.nodes:
            if node not in self._down and not node.alive():
                self._run.problem(
                    f"broker {node.number} ended by itself: {node.last_output[-800:]}"
                )
                node.close()
                self._down.append(node)

    def _up(self) -> list[Node]:
        return [n for n in self._run.nodes if n not in self._down and n not in self._paused]

    def _break(self) -> None:
        up = self._up()
        choices: list[tuple[int, Callable[[], None]]] = [(3, self._cut), (2, self._slow)]
        if up:
            choices += [(3, lambda: self._kill(self._rng.choice(up)))]
            choices += [(3, lambda: self._pause(self._rng.choice(up)))]
            choices += [(1, self._kill_all), (2, lambda: self._isolate(self._rng.choice(up)))]
        weights = [weight for weight, _ in choices]
        self._rng.choices([choice for _, choice in choices], weights)[0]()

    def _kill(self, *nodes: Node) -> None:
        self.done[f"{'kills' if self._disks is None else 'power cuts'} of {len(nodes)}"] += 1
        if self._disks is None:
            for node in nodes:
                node.kill()
        else:
            self._disks.cut_power(self._rng.randrange(1 << 30), *nodes)
        self._down += nodes

    def _kill_all(self) -> None:
        for node in list(self._paused):
            self._resume(node)
        self._kill(*self._up())

    def _pause(self, node: Node) -> None:
        self.done["pauses"] += 1
        node.pause()
        self._paused.append(node)

    def _cut(self) -> None:
        self.done["cuts"] += 1
        one, other = self._rng.sample(self._run.nodes, 2)
        both = self._rng.random() < 0.5
        self._run.network.cut(name_of(one.number), name_of(other.number), both=both)
        self._is_cut = True

    def _isolate(self, node: Node) -> None:
        self.done["isolations"] += 1
        for other in self._run.cluster.others(node):
            self._run.network.cut(name_of(node.number), name_of(other.number))
        self._is_cut = True

    def _slow(self) -> None:
        self.done["slow links"] += 1
        delay = self._rng.choice([0.02, 0.2])
        for link in self._run.peer_links:
            link.set(delay_seconds=delay, stall_chance=0.05, stall_seconds=0.5)
        self._is_cut = True

    def _repair(self) -> None:
        repairs: list[Callable[[], None]] = []
        if self._down:
            repairs.append(lambda: self._start(self._rng.choice(self._down)))
        if self._paused:
            repairs.append(lambda: self._resume(self._rng.choice(self._paused)))
        if self._is_cut:
            repairs.append(self._heal)
        self._rng.choice(repairs)()

    def _start(self, node: Node) -> None:
        self._down.remove(node)
        self._run.launch(node)

    def _resume(self, node: Node) -> None:
        self._paused.remove(node)
        node.resume()

    def _heal(self) -> None:
        self._is_cut = False
        self._run.network.heal()

    def repair_all(self) -> None:
        self.expect_alive()
        self._heal()
        for node in list(self._paused):
            self._resume(node)
        for node in list(self._down):
            self._start(node)


def mixed(run: Run) -> None:
    """Processes die and stand still, and links are cut, all at once."""
    _play(run, None)


def mixed_power(run: Run) -> None:
    """The same with power cuts, of which a random part of what is unflushed survives."""
    disks = VolatileDisks(run)
    _play(run, disks)


def _play(run: Run, disks: VolatileDisks | None) -> None:
    """Several rounds of overlapping faults; after each everything heals and must go on soon."""
    rng = random.Random(run.seed)
    run.start_brokers(
        BROKERS,
        network="proxies",
        settings={"GROUP__INITIAL_REBALANCE_DELAY_MS": "0"},
        module="faults.storage.volatile" if disks else "moldau",
        environments=disks.environments if disks else None,
    )
    run.start_load()
    total: Counter[str] = Counter()
    for _ in range(2 if run.quick else 8):
        run.await_whole()
        run.await_acks_of(everything(run))
        mixture = Mixture(run, rng, disks)
        deadline = time.monotonic() + rng.uniform(8, 20)
        while time.monotonic() < deadline:
            mixture.step()
            time.sleep(rng.expovariate(1 / _STEP_SECONDS))
        mixture.repair_all()
        total += mixture.done
        # What counts is how soon it goes on once all is well.
        run.fault("healed")
        run.await_acks_of(everything(run), seconds_max=_HEALED_SECONDS_MAX)
        run.healed()
        run.record_bounds()
        mixture.expect_alive()
    run.await_whole()
    run.proof(", ".join(f"{count} {name}" for name, count in sorted(total.items())))
    if disks is not None:
        disks.prove(run)
    run.note(f"seed {run.seed}")
    run.stop_load("produce")
    run.await_group()
    run.stop_load()
    run.record_committed()
    run.finish()
