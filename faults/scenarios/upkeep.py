"""Scenarios of faults while the broker tidies up."""

import random
import time

from faults.run import TOPIC, Load, Run

_SEGMENT_BYTES = 16 * 1024
RETENTION_LOAD = Load(
    rate=800.0,
    topic_settings=(f"segment.bytes={_SEGMENT_BYTES}", f"retention.bytes={8 * _SEGMENT_BYTES}"),
    expires=True,
)


def kill_during_retention(run: Run) -> None:
    """SIGKILL while old segments are deleted all the time: offsets never go back."""
    rng = random.Random(22)
    run.start_brokers(settings={"LOG__RETENTION_CHECK_MS": "100"})
    run.start_load()
    times = 4 if run.quick else 25
    deleted = 0
    for _ in range(times):
        before = _first_segments(run)
        run.await_acks(1000)
        run.record_bounds()
        time.sleep(rng.uniform(0, 0.2))
        run.fault("kill")
        run.broker.kill()
        deleted += before != _first_segments(run)
        run.restart(run.broker)
        run.record_bounds()
    run.expect(deleted > 0, "retention deleted nothing")
    run.proof(f"{times} processes ended by signal 9, segments deleted before {deleted} of them")
    run.finish()


def _first_segments(run: Run) -> list[str]:
    """The oldest file of every partition."""
    found = (run.broker.data_dir / "topics" / TOPIC).glob("*/*/*.log")
    oldest: dict[str, str] = {}
    for path in sorted(found):
        oldest.setdefault(path.parent.name, path.name)
    return [oldest[partition] for partition in sorted(oldest)]
