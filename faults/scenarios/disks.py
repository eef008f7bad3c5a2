"""Scenarios of disks that lose power, fail, or fill up."""

from collections import Counter

from faults.checker import Anomaly
from faults.flags import put
from faults.nodes import Node, NodeError
from faults.run import Load, Run, ScenarioError
from faults.storage import volatile
from faults.storage.injected import FLAG_VARIABLE, TRACE_VARIABLE, refused
from faults.storage.volumes import CutVolume, FailingVolume, FullVolume

_ACKS_BETWEEN = 200
_EXIT_STORAGE = 74
_SEED_KEEPS_NOTHING = 13


def _cut_power(run: Run, volume: CutVolume) -> None:
    """Everything stops at one moment: the broker first, so that it cannot see its disk go."""
    run.fault("power cut")
    run.broker.pause()
    volume.cut_power()
    run.broker.kill()
    run.proof(volume.recover())
    run.restart(run.broker)


def power_cut(run: Run) -> None:
    """Cut the power in the middle of writes, again and again: acked records were flushed."""
    volume = CutVolume(run.home / "disk")
    run.use(volume)
    run.start_brokers(data_dirs=[volume.path / "data"])
    run.start_load()
    for _ in range(3 if run.quick else 15):
        run.await_acks(_ACKS_BETWEEN)
        _cut_power(run, volume)
    run.await_acks(_ACKS_BETWEEN)
    run.finish()


def power_cut_torn(run: Run) -> None:
    """Of what was not flushed a random part survives, sector by sector and in no order."""
    _start_volatile(run)
    run.start_load()
    torn: Counter[str] = Counter()
    for seed in range(4 if run.quick else 30):
        run.await_acks(_ACKS_BETWEEN)
        torn += _tear(run, seed)
    run.await_acks(_ACKS_BETWEEN)
    _prove_torn(run, torn)
    run.finish()


def torn_changes(run: Run) -> None:
    """Topics come and go and a group commits, while the power is cut and all of it may tear."""
    _start_volatile(run)
    run.start_load()
    run.start_churn()
    torn: Counter[str] = Counter()
    for seed in range(4 if run.quick else 20):
        run.await_acks(2 * _ACKS_BETWEEN)
        torn += _tear(run, seed)
    run.await_acks(_ACKS_BETWEEN)
    _prove_torn(run, torn)
    run.stop_churn()
    run.finish()


def torn_start(run: Run) -> None:
    """Cut the power before every write, flush and removal of the first start, and of a later one.

    Each start finds what the one before it left in the middle of its own work.
    """
    _start_volatile(run, start=False)
    torn: Counter[str] = Counter()
    first = _interrupt_starts(run, torn)
    run.start_load()
    run.await_acks(_ACKS_BETWEEN)
    torn += _cut_volatile(run, seed=0)
    later = _interrupt_starts(run, torn)
    run.await_acks(_ACKS_BETWEEN)
    run.expect(first > 1 and later > 1, f"only {first} and {later} starts were interrupted")
    run.proof(f"{first} first starts and {later} later ones interrupted")
    _prove_torn(run, torn)
    run.finish()


def _interrupt_starts(run: Run, torn: Counter[str]) -> int:
    """Start again and again, each time a little further, until one gets through; the count."""
    interrupted, step = 0, 7 if run.quick else 1
    while True:
        undone = _start_interrupted(run, seed=interrupted, changes=interrupted * step)
        if undone is None:
            break
        torn += undone
        interrupted += 1
    # The cut was due at one of its next changes: that start served nobody for long.
    run.broker.kill()
    run.restart(run.broker)
    return interrupted


def torn_retention(run: Run) -> None:
    """The same while retention deletes segments all the time: removals may be undone, too."""
    _start_volatile(run, LOG__RETENTION_CHECK_MS="100")
    run.start_load()
    torn: Counter[str] = Counter()
    for seed in range(4 if run.quick else 20):
        run.await_acks(5 * _ACKS_BETWEEN)
        run.record_bounds()
        torn += _tear(run, seed)
        run.record_bounds()
    _prove_torn(run, torn)
    run.finish()


def _prove_torn(run: Run, torn: Counter[str]) -> None:
    run.expect(torn["sectors"] > torn["sectors_kept"] > 0, f"nothing was torn: {dict(torn)}")
    run.proof(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in torn.items()))


def _start_volatile(run: Run, *, start: bool = True, **settings: str) -> None:
    run.start_brokers(
        start=start,
        module="faults.storage.volatile",
        environments={
            1: {
                volatile.FLAG_VARIABLE: str(run.home / "cut"),
                volatile.PROOF_VARIABLE: str(run.home / "proof"),
            }
        },
        settings=settings,
    )


def _tear(run: Run, seed: int) -> Counter[str]:
    """Cut the power and start again; what was not durable, and what of it was kept."""
    torn = _cut_volatile(run, seed)
    run.restart(run.broker)
    return torn


def _cut_volatile(run: Run, seed: int) -> Counter[str]:
    run.fault("torn power cut")
    put(run.home / "cut", str(seed))
    code = run.broker.exit_code(seconds_max=30.0)
    if code != -9:
        raise ScenarioError(f"the power cut did not end the broker (exit code {code})")
    return _undone(run)


def _undone(run: Run) -> Counter[str]:
    torn = Counter(volatile.undone(run.home / "proof"))
    (run.home / "cut").unlink()
    return torn


def _start_interrupted(run: Run, seed: int, changes: int) -> Counter[str] | None:
    """Start the broker, which loses power after that many changes; None if it got through."""
    (run.home / "cut").write_text(f"{seed} {changes}")
    try:
        run.broker.start()
    except NodeError as error:
        if run.broker.last_code != -9:
            raise ScenarioError(f"after {changes} changes: {error}") from error
        return _undone(run)
    # It holds for the next start only.
    (run.home / "cut").unlink()
    return None


def power_cut_unflushed(run: Run) -> None:
    """The same with log.flush = never, which promises nothing: the harness must see the loss."""
    volume = CutVolume(run.home / "disk")
    run.use(volume)
    run.start_brokers(data_dirs=[volume.path / "data"], settings={"LOG__FLUSH": "never"})
    run.start_load()
    run.await_acks(_ACKS_BETWEEN)
    _cut_power(run, volume)
    expect_loss(run)


def torn_unflushed(run: Run) -> None:
    """The same control without a file system of its own: all that is unflushed is undone."""
    _start_volatile(run, LOG__FLUSH="never")
    run.start_load()
    run.await_acks(_ACKS_BETWEEN)
    torn = _tear(run, _SEED_KEEPS_NOTHING)
    run.expect(torn["sectors"] > 0, f"nothing was undone: {dict(torn)}")
    run.proof(f"{torn['sectors'] - torn['sectors_kept']} of {torn['sectors']} sectors undone")
    expect_loss(run)


def expect_loss(run: Run) -> None:
    """The end of a control: the checker must see that acked records are gone."""
    # Offsets are given out again after the loss, and sequence numbers are unknown.
    run.allow(*Anomaly)
    run.stop_load("consume")
    run.finish()
    lost = run.result.verdict.count(Anomaly.LOST) + run.result.verdict.count(Anomaly.INCONSISTENT)
    run.expect(lost > 0, "a power cut without flushes lost nothing: this harness sees no loss")
    run.note(f"lost or replaced, as must be seen here: {lost}")


def fsync_fails(run: Run) -> None:
    """fsync says EIO: the broker ends itself at once and asks no file a second time.

    After a failed fsync the page cache claims to be clean: a second one would say that all is well.
    """
    flag, trace = run.home / "broken", run.home / "refused"
    run.start_brokers(
        module="faults.storage.injected",
        environments={1: {FLAG_VARIABLE: str(flag), TRACE_VARIABLE: str(trace)}},
    )
    run.start_load()
    run.await_acks(_ACKS_BETWEEN)
    run.fault("fsync EIO")
    flag.touch()
    await_fence(run, run.broker)
    files = refused(trace)
    again = sorted({path for path in files if files.count(path) > 1})
    run.expect(bool(files), "no fsync failed")
    run.expect(not again, f"flushed again after EIO: {again}")
    run.proof(f"{len(files)} fsync calls refused, none of a file that was refused before")
    flag.unlink()
    run.restart(run.broker)
    run.await_acks(_ACKS_BETWEEN)
    run.finish()


def disk_fails(run: Run) -> None:
    """A disk under a real file system refuses blocks: the broker ends, what it acked is there."""
    volume = FailingVolume(run.home / "disk")
    run.use(volume)
    run.start_brokers(data_dirs=[volume.path / "data"])
    run.start_load()
    run.await_acks(_ACKS_BETWEEN)
    run.fault("failing disk")
    volume.fail()
    await_fence(run, run.broker)
    volume.repair()
    run.restart(run.broker)
    run.await_acks(_ACKS_BETWEEN)
    run.finish()


def await_fence(run: Run, node: Node) -> None:
    """Until a broker whose disk failed has ended itself, and logged why once."""
    code = node.exit_code(seconds_max=60.0)
    if code is None:
        raise ScenarioError("the broker went on although its disk failed")
    run.expect(code == _EXIT_STORAGE, f"exit code {code} instead of {_EXIT_STORAGE}")
    reported = [line for line in node.last_output.splitlines() if "CRITICAL" in line]
    run.expect(len(reported) == 1, f"the broker logged {len(reported)} times what ended it")
    run.expect("Traceback" not in node.output, "the broker ended with a traceback")
    run.proof(f"exit code {code}: {''.join(reported).partition(': ')[2][:120]}")


def disk_full(run: Run) -> None:
    """The disk fills up: writes wait, reads go on, and it heals without a restart."""
    volume = FullVolume(run.home / "disk")
    run.use(volume)
    run.start_brokers(data_dirs=[volume.path / "data"], settings={"LOG__DISK_RESERVE_BYTES": "0"})
    run.start_load()
    pid = run.broker.pid
    for leave_bytes in (0, 5000) if run.quick else (0, 1, 4096, 5000, 70_000):
        run.await_acks(_ACKS_BETWEEN)
        run.fault("ENOSPC")
        left = volume.fill(leave_bytes=leave_bytes)
        # Room that segments took in advance is theirs, and is used up first.
        run.await_silence(1.0, seconds_max=30.0)
        run.expect(run.read_all(), "reads did not go on while the disk was full")
        run.proof(f"{left} bytes left, acks stopped")
        volume.relieve()
        run.await_acks(_ACKS_BETWEEN, seconds_max=30.0)
    run.expect(run.broker.alive() and run.broker.pid == pid, "the broker was restarted")
    run.finish()


FULL_LOAD = Load(record_bytes=4000, rate=400.0)
