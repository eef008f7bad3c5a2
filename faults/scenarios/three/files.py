"""The scenario in which each kind of file of one broker is damaged, and that broker leads."""

import re
from pathlib import Path
from typing import Final

from faults.nodes import Node, NodeError
from faults.run import TOPIC, Load, Run, ScenarioError
from faults.scenarios.damage import damages
from faults.scenarios.three.members import move
from faults.scenarios.three.processes import BROKERS, everything

LOAD: Final = Load(
    partitions=2,
    replication=3,
    rate=100.0,
    consumers=0,
    members=1,
    topic_settings=("segment.bytes=16384",),
)
_WHOLE_SECONDS_MAX: Final = 120.0
_NOT_ITS_OWN: Final = {"lock", "strays"}
"""Names of what holds nothing that a broker reads."""
_ALWAYS_THERE: Final = ("topics/N.log", "topics/control.journal", "metadata/N", "votes", "broker")


def damaged_leader(run: Run) -> None:
    """Each kind of file of one broker, flipped and cut; then that broker leads and all is read."""
    run.start_brokers(BROKERS)
    run.start_load()
    victim = run.nodes[2]
    run.await_whole()
    run.await_acks_of(everything(run), 200)
    for partition in everything(run):
        if not move(run, partition, [3, 1, 2]):
            raise ScenarioError(f"partition {partition} could not be given to broker 3")
    run.await_moves(_WHOLE_SECONDS_MAX)
    run.await_balanced()
    victim.stop()
    data_dir = victim.data_dir
    kinds = sorted(files_by_kind(data_dir))
    run.start(victim)
    refused: list[str] = []
    served: list[str] = []
    skipped: list[str] = []
    for kind in kinds:
        for how, damage in damages(data_dir / kind):
            if run.quick and how == "shortened":
                continue
            run.await_whole(_WHOLE_SECONDS_MAX)
            run.await_acks_of(everything(run))
            victim.stop()
            path = files_by_kind(data_dir).get(kind)
            if path is None:
                # A stop or the repair of the last damage left none of it.
                skipped.append(f"{kind} {how}")
                run.start(victim)
                continue
            before = path.read_bytes()
            run.fault(f"{how} {kind}")
            damage(path)
            run.expect(path.read_bytes() != before, f"{kind} was not {how}")
            (served if _start(run, victim, path, before) else refused).append(f"{kind} {how}")
            run.await_whole(_WHOLE_SECONDS_MAX)
            run.await_balanced()
            run.healed()
            led = run.cluster.led_by(victim)
            run.expect(led == [*everything(run)], f"{kind} {how}: broker 3 leads only {led}")
            whole = run.read_all()
            run.expect(whole, f"{kind} {how}: not everything could be read from broker 3")
    missed = [each for each in skipped if each.startswith(_ALWAYS_THERE)]
    run.expect(not missed, f"not damaged: {missed}")
    if skipped:
        run.note(f"not there by then: {', '.join(skipped)}")
    run.proof(f"led with damage to {len(served)}: {', '.join(served)}")
    run.proof(f"refused to start with {len(refused)}: {', '.join(refused)}")
    run.finish()


def _start(run: Run, node: Node, path: Path, before: bytes) -> bool:
    """Start it with a damaged file; if it refuses, with the file as it was. Whether it served."""
    damaged = path.read_bytes()
    try:
        run.start(node)
    except NodeError:
        said = node.last_output
        run.expect("Traceback" not in said, f"{path.name}: the start ended with a traceback")
        run.expect(path.name in said, f"{path.name}: the refusal does not name the file")
        path.write_bytes(before)
        run.start(node)
        return False
    run.expect("Traceback" not in node.last_output, f"{path.name}: it served with a traceback")
    if path.suffix == ".log" and path.parent.name != "metadata":
        # Records: it must have said so, or cut what was never acknowledged.
        run.await_true(
            lambda: path.name in node.last_output or path.read_bytes() != damaged,
            f"{path.name}: the damage was not noticed",
        )
    return True


def files_by_kind(data_dir: Path) -> dict[str, Path]:
    """One file of each kind, the newest by name: of the broker, its metadata and one topic."""
    found: dict[str, Path] = {}
    for path in sorted(data_dir.rglob("*")):
        parts = path.relative_to(data_dir).parts
        if not path.is_file() or _NOT_ITS_OWN & set(parts):
            continue
        if parts[0] == "topics" and parts[1] != TOPIC:
            continue
        if path.read_bytes().strip(b"\0"):
            found["/".join((*parts[:1][: len(parts) - 1], re.sub(r"\d+", "N", path.name)))] = path
    return found
