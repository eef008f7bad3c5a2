"""Scenarios of brokers that join, leave, lose their data, or come back with damaged files."""

import random
import shutil
import time
from typing import Any

from faults.network import name_of
from faults.nodes import Node, NodeError
from faults.run import TOPIC, Load, Run
from faults.scenarios.damage import damage_files, damages, flip
from faults.scenarios.three.processes import BROKERS, everything, kill

SMALL_SEGMENTS = Load(
    partitions=2, replication=3, rate=100.0, topic_settings=("segment.bytes=16384",)
)
RETENTION_LOAD = Load(
    partitions=3,
    replication=3,
    rate=150.0,
    topic_settings=("segment.bytes=16384", "retention.bytes=65536"),
    expires=True,
)
_MOVE_SECONDS_MAX = 180.0
_NEW_TOPIC = "faults-later"


def _broker(run: Run, number: int) -> dict[str, Any] | None:
    """What the cluster says of a broker; None if it is not a member."""
    for topology in run.cluster.topologies().values():
        for entry in topology["brokers"]:
            if entry["id"] == number:
                found: dict[str, Any] = entry
                return found
    return None


def join(run: Run) -> Node:
    """A further broker, through any member that runs."""
    node = run.add_node()
    node.join = next(other.http for other in run.nodes if other is not node and other.alive())
    run.start(node)
    return node


def leave(run: Run, node: Node, *, through: Node) -> None:
    status, reported = run.cluster.ask(through, "/api/v1/cluster/leave", {"broker": node.number})
    run.expect(status == 202, f"leave of broker {node.number}: {status} {reported}")


def await_gone(run: Run, node: Node) -> None:
    """Until no replica is left on it and it is not a member any more."""
    deadline = time.monotonic() + _MOVE_SECONDS_MAX
    while _broker(run, node.number) is not None:
        if time.monotonic() > deadline:
            run.problem(f"broker {node.number} did not leave: {_broker(run, node.number)}")
            return
        time.sleep(0.5)


def grow_and_shrink(run: Run) -> None:
    """A fourth broker joins under load, a new topic uses it, the first one is removed."""
    run.start_brokers(BROKERS)
    run.start_load()
    run.await_whole()
    run.await_acks_of(everything(run))
    run.fault("join")
    fourth = join(run)
    run.await_whole()
    run.await_acks_of(everything(run))
    run.create_topic(_NEW_TOPIC)
    held = {number for lead in run.cluster.leads(_NEW_TOPIC).values() for number in lead.replicas}
    run.expect(fourth.number in held, f"the new topic does not use it: {sorted(held)}")
    run.proof(f"broker {fourth.number} joined, a new topic is on {sorted(held)}")
    first = run.nodes[0]
    run.fault("remove")
    leave(run, first, through=fourth)
    await_gone(run, first)
    run.await_acks_of(everything(run))
    leads = run.cluster.leads()
    left = [p for p, lead in leads.items() if first.number in lead.replicas]
    run.expect(not left, f"the removed broker still has {left}")
    run.proof(f"broker 1 removed; its partitions are on {sorted(_holders(run))}")
    first.close()
    run.await_whole()
    run.await_acks_of(everything(run), 20)
    run.finish()
    verdict = run.result.verdict
    run.expect(verdict.failed + verdict.unknown == 0, "a produce failed")


def _holders(run: Run) -> set[int]:
    return {number for lead in run.cluster.leads().values() for number in lead.replicas}


def change_under_faults(run: Run) -> None:
    """One joins and one leaves while others die and links are cut: nothing acked is lost."""
    rng = random.Random(run.seed)
    run.start_brokers(BROKERS, network="proxies")
    run.start_load()
    for _ in range(1 if run.quick else 3):
        run.await_whole(120.0)
        run.await_acks_of(everything(run))
        members = [node for node in run.nodes if node.alive()]
        run.fault("join under faults")
        node = run.add_node()
        node.join = members[-1].http
        run.launch(node)
        victim = rng.choice(members[:-1])
        kill(run, victim)
        time.sleep(rng.uniform(0, 2))
        run.restart(victim)
        node.await_ready()
        run.await_whole(120.0)
        run.fault("leave under faults")
        leaver, *others = members
        leave(run, leaver, through=others[-1])
        for _ in range(3):
            one, other = rng.sample([*others, node], 2)
            run.network.cut(name_of(one.number), name_of(other.number))
            time.sleep(rng.uniform(1, 3))
            run.network.heal()
            victim = rng.choice(others)
            kill(run, victim)
            time.sleep(rng.uniform(0, 1))
            run.restart(victim)
            run.await_acks_of(everything(run))
        await_gone(run, leaver)
        run.proof(
            f"broker {node.number} joined and {leaver.number} left through kills and cuts; "
            f"partitions are on {sorted(_holders(run))}"
        )
        leaver.close()
    run.await_whole(120.0)
    run.await_acks_of(everything(run))
    run.finish()


def move_under_faults(run: Run) -> None:
    """Partitions move between four brokers all the time, while these die: nothing acked is lost."""
    rng = random.Random(run.seed)
    run.start_brokers(BROKERS + 1)
    run.start_load()
    asked = moved = kills = 0
    for _ in range(5 if run.quick else 30):
        run.await_acks_of(everything(run))
        away, back = rng.sample(range(run.load.partitions), 2)
        moved += move(run, away, rng.sample(range(1, BROKERS + 2), BROKERS))
        # There and back at once: who was to lose a replica keeps it, and votes.
        there = [*run.cluster.leads()[back].replicas]
        free = next(n for n in range(1, BROKERS + 2) if n not in there)
        moved += move(run, back, [free, *there[1:]])
        moved += move(run, back, there)
        asked += 3
        time.sleep(rng.uniform(0, 0.5))
        victim = rng.choice(run.nodes)
        run.fault("kill while partitions move", run.cluster.led_by(victim))
        kill(run, victim)
        kills += 1
        run.await_acks_of(everything(run))
        run.healed()
        time.sleep(rng.uniform(0, 0.5))
        run.restart(victim)
    run.await_whole(120.0)
    run.await_moves(120.0)
    run.expect(moved > asked // 2, f"only {moved} of {asked} moves were taken")
    run.proof(f"{moved} of {asked} moves taken, {kills} processes ended by signal 9")
    run.finish()


def move(run: Run, partition: int, targets: list[int]) -> bool:
    """Ask for a move as an operator does; whether the cluster took it."""
    to = ",".join(map(str, targets))
    return run.operate("partition", "move", f"{TOPIC}:{partition}", "--to", to, "-y", "--no-wait")


def wiped(run: Run) -> None:
    """A broker comes back under its number without its data: it is refused, so it cannot vote."""
    run.start_brokers(BROKERS)
    run.start_load()
    run.await_whole()
    run.await_acks_of(everything(run))
    victim = run.nodes[1]
    run.fault("wipe")
    kill(run, victim)
    shutil.rmtree(victim.data_dir)
    run.await_acks_of(everything(run))
    run.healed()
    victim.join = run.nodes[0].http
    try:
        run.start(victim)
    except NodeError:
        said = [line for line in victim.last_output.splitlines() if "error" in line.lower()]
        run.proof(f"exit code {victim.last_code}: {''.join(said[-1:])[:160]}")
        run.expect("Traceback" not in victim.last_output, "it ended with a traceback")
    else:
        # Let in again, it has to relearn everything before its vote counts.
        run.note("let in again")
        run.await_whole(120.0)
        run.proof("it holds every replica again")
    run.await_acks_of(everything(run), 20)
    # Its place is taken by another number.
    if not victim.alive():
        node = join(run)
        leave(run, victim, through=run.nodes[0])
        await_gone(run, victim)
        run.note(f"replaced by broker {node.number}")
        run.await_whole(120.0)
    run.finish()


def damaged_files(run: Run) -> None:
    """Small files of one broker are flipped or cut while it is down: it refuses, or relearns."""
    run.start_brokers(BROKERS)
    run.start_load()
    run.await_acks_of(everything(run), 100)
    victim = run.nodes[2]
    run.await_whole()
    victim.stop()
    root = victim.data_dir
    index = sorted((root / "topics" / TOPIC).glob("*/0/*.index"))
    metadata = root / "metadata"
    for pattern in (
        root / "votes",
        root / "broker.json",
        metadata / "*.log",
        metadata / "*.snapshot",
        *index[:1],
    ):
        for kind, damage in damages(pattern):
            if run.quick and kind == "shortened":
                continue
            # A stop writes some of them again, under another name.
            # The newest is what counts: nobody reads an older snapshot.
            (*_, path) = sorted(pattern.parent.glob(pattern.name))
            damage_files(run, victim, path, kind, damage)
            run.await_acks_of(everything(run))
    run.restart(victim)
    run.await_whole()
    run.finish()


def bit_flip(run: Run) -> None:
    """A bit of a closed segment of one replica flips: clients never see it."""
    run.start_brokers(BROKERS)
    run.start_load()
    victim = run.nodes[1]
    while len(_segments(victim)) < 3 and run.result.passed:
        run.await_acks(100)
    run.await_whole()
    run.stop_load("produce")
    # The first of the replicas leads whenever it can.
    run.expect(move(run, 0, [victim.number, 1, 3]), "the victim could not be made to lead")
    run.await_moves(_MOVE_SECONDS_MAX)
    victim.stop()
    path = _segments(victim)[0]
    position = path.stat().st_size // 2
    run.fault("bit flip")
    flip(path, position)
    damaged = path.read_bytes()
    run.start(victim)
    run.expect(run.read_all(), "not everything could be read while one replica was damaged")
    run.await_balanced()
    run.expect(run.read_all(seconds_max=60.0), "not everything could be read in the end")
    run.expect(path.name in victim.last_output, "the broker led, and did not name the file")
    run.proof(
        f"bit flipped at byte {position} of {path.name} on broker {victim.number}, which led "
        "afterwards, found it and was repaired"
    )
    run.await_true(
        lambda: path.exists() and path.read_bytes() != damaged, "the replica was not repaired"
    )
    kept = list((victim.data_dir / "strays").rglob(path.name))
    run.expect([file.read_bytes() for file in kept] == [damaged], f"not set aside: {kept}")
    run.finish()


def _segments(node: Node) -> list[Any]:
    return sorted((node.data_dir / "topics" / TOPIC).glob("*/0/*.log"))


def kill_during_retention(run: Run) -> None:
    """Kill leaders while old segments go all the time, and a follower that fell behind them."""
    rng = random.Random(22)
    run.start_brokers(BROKERS, settings={"LOG__RETENTION_CHECK_MS": "100"})
    run.start_load()
    times = 2 if run.quick else 8
    for turn in range(times):
        run.await_whole()
        run.await_acks_of(everything(run), 100)
        run.record_bounds()
        time.sleep(rng.uniform(0, 0.2))
        victim = run.cluster.leader(turn % run.load.partitions)
        run.fault("kill during retention", run.cluster.led_by(victim))
        kill(run, victim)
        run.await_acks_of(everything(run))
        run.healed()
        run.restart(victim)
        run.record_bounds()
    run.proof(f"{times} leaders ended by signal 9 while segments were deleted")
    for _ in range(1 if run.quick else 3):
        run.await_whole()
        victim = run.cluster.node(rng.randint(1, BROKERS))
        before = [path.name for path in _segments(victim)]
        run.fault("fall behind retention", run.cluster.led_by(victim))
        kill(run, victim)
        run.await_acks_of(everything(run))
        run.healed()
        other = run.cluster.others(victim)[0]
        while {path.name for path in _segments(other)} & set(before) and run.result.passed:
            run.await_acks(200)
        # It starts from a later offset now, and dies in the middle of that once.
        run.start(victim)
        time.sleep(rng.uniform(0, 0.5))
        kill(run, victim)
        run.restart(victim)
        run.await_whole()
        run.proof(f"broker {victim.number} was away until no other broker had a segment of its log")
        run.record_bounds()
    run.finish()
