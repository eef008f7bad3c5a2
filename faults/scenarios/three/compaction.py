"""The scenario of a compacted topic whose brokers die while they compact."""

import random
import time

from faults.run import TOPIC, Load, Run
from faults.scenarios.three.processes import BROKERS, everything, kill
from faults.stored import cleaned_files

LOAD = Load(
    partitions=3,
    replication=3,
    rate=250.0,
    keys=25,
    topic_settings=(
        "cleanup.policy=compact",
        "segment.bytes=20000",
        "min.cleanable.dirty.ratio=0.01",
        # A reader of a value has this long to learn that it was removed.
        "delete.retention.ms=10000",
    ),
)
_SETTINGS = {"LOG__COMPACTION_CHECK_MS": "100"}
_LAST_READER = "r1"
_KINDS = ("leader", "follower", "leader", "all")


def kill_during_compaction(run: Run) -> None:
    """Kill leaders, followers or all, while each replica compacts for itself all the time."""
    rng = random.Random(run.seed)
    run.start_brokers(BROKERS, settings=_SETTINGS)
    run.start_load()
    times = 3 if run.quick else 12
    ended = 0
    for turn in range(times):
        run.await_whole()
        run.await_acks_of(everything(run), 100)
        leader = run.cluster.leader(turn % run.load.partitions)
        kind = _KINDS[turn % len(_KINDS)] if not run.quick else rng.choice(_KINDS)
        victims = {
            "leader": [leader],
            "follower": [rng.choice(run.cluster.others(leader))],
            "all": run.nodes,
        }[kind]
        # Nobody knows what of a compaction that hits.
        time.sleep(rng.uniform(0, 0.3))
        run.fault(f"kill {kind} during compaction")
        kill(run, *victims)
        ended += len(victims)
        if kind != "all":
            # Those that are left compact what this one does not have.
            run.await_acks_of(everything(run), 150)
            run.healed()
        run.start(*victims)
        run.result.recoveries += [(node.data_bytes, node.start_seconds) for node in victims]
        run.await_acks_of(everything(run))
        if kind == "all":
            run.healed()
    run.await_whole()
    cleaned = [cleaned_files(node.data_dir, TOPIC) for node in run.nodes]
    run.expect(all(cleaned), f"not every broker compacted: {cleaned}")
    run.proof(f"{ended} processes ended by signal 9; {cleaned} compacted segments at the end")
    run.finish()
    polls = (event for event in run.events() if event["op"] == "poll")
    held = sum(len(event["r"]) for event in polls if event["c"] == _LAST_READER)
    acked = run.result.verdict.acked
    run.expect(0 < held < acked // 2, f"{held} of {acked} records are left")
    run.note(f"{held:,} of {acked:,} acked records are left, the last of each key among them")
