"""Scenarios of disks of a cluster that lose power, fail, crawl, or fill up."""

import time
from collections import Counter

from faults.flags import put
from faults.nodes import Node
from faults.run import Load, Run, ScenarioError
from faults.scenarios.disks import await_fence, expect_loss
from faults.scenarios.three.processes import BROKERS, everything, kill
from faults.storage import volatile
from faults.storage.injected import FLAG_VARIABLE, TRACE_VARIABLE, refused
from faults.storage.volumes import CutVolume, FullVolume

MANY_LOAD = Load(partitions=390, replication=3, rate=300.0, consumers=0)
FULL_LOAD = Load(partitions=6, replication=3, rate=60.0, record_bytes=4000)
_VOLUME_MEGABYTES = 768
_FULL_MEGABYTES = 96
_ELECTIONS_MAX = 1.2
"""Of each partition that has to be led by another, in all."""


def _start_on_volumes(run: Run, **settings: str) -> list[CutVolume]:
    volumes = []
    for number in range(1, BROKERS + 1):
        volume = CutVolume(run.home / f"disk{number}", megabytes=_VOLUME_MEGABYTES)
        run.use(volume)
        volumes.append(volume)
    paths = [volume.path / "data" for volume in volumes]
    run.start_brokers(BROKERS, data_dirs=paths, settings=settings)
    return volumes


def _cut_power(run: Run, volumes: list[CutVolume], *nodes: Node) -> None:
    """Everything stops at one moment: the brokers first, so that they cannot see their disks go."""
    for node in nodes:
        if node.state() != "T":
            node.pause()
    for node in nodes:
        volumes[node.number - 1].cut_power()
    kill(run, *nodes)
    for node in nodes:
        run.proof(volumes[node.number - 1].recover())


def power_cut_one(run: Run) -> None:
    """One broker loses power, comes back, and catches up."""
    volumes = _start_on_volumes(run)
    run.start_load()
    for turn in range(2 if run.quick else 9):
        run.await_whole()
        run.await_acks_of(everything(run))
        victim = run.nodes[turn % BROKERS]
        run.fault("power cut of one", run.cluster.led_by(victim))
        _cut_power(run, volumes, victim)
        run.await_acks_of(everything(run))
        run.healed()
        run.restart(victim)
    run.await_whole()
    run.finish()


def power_cut_all(run: Run) -> None:
    """All lose power at once, in the middle of writes."""
    volumes = _start_on_volumes(run)
    run.start_load()
    for _ in range(2 if run.quick else 8):
        run.await_acks_of(everything(run))
        run.fault("power cut of all")
        _cut_power(run, volumes, *run.nodes)
        run.start(*run.nodes)
        run.await_acks_of(everything(run))
        run.healed()
    run.await_whole()
    run.finish()


def power_cut_all_unflushed(run: Run) -> None:
    """The same with log.flush = never, which promises nothing: the harness must see the loss."""
    volumes = _start_on_volumes(run, LOG__FLUSH="never")
    run.start_load()
    run.await_acks_of(everything(run), 20)
    run.fault("power cut of all, nothing flushed")
    _cut_power(run, volumes, *run.nodes)
    run.start(*run.nodes)
    run.await_acks_of(everything(run))
    expect_loss(run)


def pauses_and_power_cut(run: Run) -> None:
    """Pause one, write, cut another's power, resume, pause the third.

    What was written is on the disk of the second and in the third, which stands still: the first,
    which missed it, and the second must not go on without it.
    """
    volumes = _start_on_volumes(run)
    run.start_load()
    for turn in range(1 if run.quick else 4):
        run.await_whole()
        run.await_acks_of(everything(run))
        first, second, third = (run.nodes[(turn + step) % BROKERS] for step in range(BROKERS))
        run.fault("pause, power cut, pause")
        with run.paused(first):
            run.proof(f"broker {first.number} in state {first.state()}")
            run.await_acks_of(everything(run), 20)
            _cut_power(run, volumes, second)
        with run.paused(third):
            run.proof(f"broker {third.number} in state {third.state()}")
            # It may serve only once the third is back.
            run.launch(second)
            run.await_either_acks(seconds_max=15.0)
        second.await_ready()
        run.await_acks_of(everything(run))
        run.healed()
    run.await_whole()
    run.finish()


class VolatileDisks:
    """Disks with a volatile cache, one for each broker, that lose power with their broker."""

    def __init__(self, run: Run) -> None:
        self._homes = {n: run.home / f"volatile{n}" for n in range(1, BROKERS + 1)}
        self.torn: Counter[str] = Counter()
        """What was not durable when the power was cut, and what of it was kept."""
        for home in self._homes.values():
            home.mkdir()

    @property
    def environments(self) -> dict[int, dict[str, str]]:
        """For brokers that run faults.storage.volatile."""
        return {
            number: {
                volatile.FLAG_VARIABLE: str(home / "cut"),
                volatile.PROOF_VARIABLE: str(home / "proof"),
            }
            for number, home in self._homes.items()
        }

    def cut_power(self, seed: int, *nodes: Node) -> None:
        """Of some brokers at once; none of them may be paused."""
        for node in nodes:
            home = self._homes[node.number]
            put(home / "cut", str(seed * BROKERS + node.number))
        for node in nodes:
            code = node.exit_code(seconds_max=30.0)
            if code != -9:
                raise ScenarioError(f"the power cut did not end a broker (exit code {code})")
            home = self._homes[node.number]
            self.torn += Counter(volatile.undone(home / "proof"))
            (home / "cut").unlink()

    def prove(self, run: Run) -> None:
        run.expect(self.torn["sectors"] > 0, f"nothing was torn: {dict(self.torn)}")
        reported = [f"{name.replace('_', ' ')} {count}" for name, count in self.torn.items()]
        run.proof(", ".join(reported))


def torn_all(run: Run) -> None:
    """All lose power at once, and of what was not flushed a random part survives on each."""
    disks = VolatileDisks(run)
    run.start_brokers(BROKERS, module="faults.storage.volatile", environments=disks.environments)
    run.start_load()
    for seed in range(2 if run.quick else 12):
        run.await_acks_of(everything(run), 15)
        run.fault("torn power cut of all")
        disks.cut_power(seed, *run.nodes)
        run.start(*run.nodes)
        run.await_acks_of(everything(run))
        run.healed()
    disks.prove(run)
    run.await_whole()
    run.finish()


def _start_injected(run: Run) -> None:
    run.start_brokers(
        BROKERS,
        module="faults.storage.injected",
        environments={
            number: {
                FLAG_VARIABLE: str(run.home / f"broken{number}"),
                TRACE_VARIABLE: str(run.home / f"refused{number}"),
            }
            for number in range(1, BROKERS + 1)
        },
    )
    run.start_load()
    run.await_whole()


def fsync_fails(run: Run) -> None:
    """fsync of a leader says EIO: it ends itself, the others go on, and it comes back."""
    _start_injected(run)
    for turn in range(1 if run.quick else 3):
        run.await_whole()
        run.await_acks_of(everything(run))
        victim = run.cluster.leader(turn)
        flag = run.home / f"broken{victim.number}"
        trace = run.home / f"refused{victim.number}"
        trace.unlink(missing_ok=True)
        run.fault("fsync EIO", run.cluster.led_by(victim))
        flag.touch()
        await_fence(run, victim)
        files = refused(trace)
        again = sorted({path for path in files if files.count(path) > 1})
        run.expect(bool(files), "no fsync failed")
        run.expect(not again, f"flushed again after EIO: {again}")
        run.await_acks_of(everything(run))
        run.healed()
        flag.unlink()
        run.restart(victim)
    run.await_whole()
    run.finish()


def slow_disk(run: Run) -> None:
    """Flushes of one broker take 300 ms more: those that it leads are slow, nothing else is."""
    _start_injected(run)
    for turn in range(1 if run.quick else BROKERS):
        run.await_acks_of(everything(run))
        victim = run.nodes[turn]
        flag = run.home / f"broken{victim.number}"
        before = run.cluster.epochs()
        run.fault("slow disk")
        put(flag, "0.3")
        deadline = time.monotonic() + (4.0 if run.quick else 15.0)
        while time.monotonic() < deadline:
            run.await_acks_of(everything(run), 3)
        flag.unlink()
        after = run.cluster.epochs()
        elections = sum(after[partition] - before[partition] for partition in before)
        run.note(f"{elections} changes of a leader")
        count = len(refused(run.home / f"refused{victim.number}"))
        run.expect(count > 0, "no flush was slow")
        run.proof(f"{count} flushes of broker {victim.number} took 300 ms more")
        run.await_whole()
        run.healed()
    run.finish()


def disk_full(run: Run) -> None:
    """The disk of one fills up, then those of all: reads go on, and it heals without a restart."""
    volumes = []
    for number in range(1, BROKERS + 1):
        volume = FullVolume(run.home / f"disk{number}", megabytes=_FULL_MEGABYTES)
        run.use(volume)
        volumes.append(volume)
    run.start_brokers(
        BROKERS,
        data_dirs=[volume.path / "data" for volume in volumes],
        settings={"LOG__DISK_RESERVE_BYTES": "0"},
    )
    run.start_load()
    pids = [node.pid for node in run.nodes]
    for turn in range(1 if run.quick else BROKERS):
        run.await_whole()
        run.await_acks_of(everything(run))
        victim = run.nodes[turn]
        led = run.cluster.led_by(victim)
        not_led = [partition for partition in everything(run) if partition not in led]
        run.fault("ENOSPC on one", led)
        left = volumes[turn].fill()
        run.await_acks_of(not_led, 40)
        run.expect(run.read_all(), "reads did not go on while one disk was full")
        run.proof(f"broker {victim.number}: {left} bytes left")
        volumes[turn].relieve()
        run.await_acks_of(everything(run))
        run.healed()
    run.await_whole()
    run.fault("ENOSPC on all")
    lefts = [volume.fill() for volume in volumes]
    # Room that segments took in advance is theirs, and is used up first.
    run.await_silence(3.0, seconds_max=90.0)
    run.expect(run.read_all(), "reads did not go on while all disks were full")
    run.proof(f"all: {lefts} bytes left, acks stopped")
    for volume in volumes:
        volume.relieve()
    run.await_acks_of(everything(run))
    run.healed()
    run.await_whole()
    run.expect([node.pid for node in run.nodes] == pids, "a broker was restarted")
    run.expect(all(node.alive() for node in run.nodes), "a broker ended")
    run.finish()


def slow_disks(run: Run) -> None:
    """All disks take 10 ms more for a flush, and there are many partitions: one broker dies."""
    for number in range(1, BROKERS + 1):
        (run.home / f"broken{number}").write_text("0.01")
    _start_injected(run)
    for turn in range(1 if run.quick else 3):
        run.await_whole()
        # Leaders that go back to a broker that was restarted are no elections of this fault.
        run.await_balanced()
        run.await_acks_of(everything(run), 1)
        victim = run.nodes[turn]
        led, before = run.cluster.led_by(victim), run.cluster.epochs()
        run.fault("kill on slow disks", led)
        kill(run, victim)
        run.await_acks_of(led, 1)
        run.healed()
        after = run.cluster.epochs()
        elections = sum(after[partition] - before[partition] for partition in before)
        run.proof(f"broker {victim.number} led {len(led)}; {elections} elections")
        most = _ELECTIONS_MAX * len(led)
        run.expect(elections <= most, f"{elections} elections of {len(led)} partitions")
        run.restart(victim)
    # A client that asks for 390 bounds, one by one, is sent on by each leader that has just moved.
    run.await_whole()
    run.await_balanced()
    counts = [len(refused(run.home / f"refused{n}")) for n in range(1, BROKERS + 1)]
    run.expect(min(counts) > 0, f"no flush was slow: {counts}")
    run.proof(f"{sum(counts)} flushes took 10 ms more")
    run.finish()
