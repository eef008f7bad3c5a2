"""Scenarios of files that changed behind the broker's back."""

from collections.abc import Callable
from pathlib import Path

from faults.nodes import Node, NodeError
from faults.run import TOPIC, Load, Run, ScenarioError

_ACKS_BETWEEN = 400
_HEADER_BYTES = 4096
_FROM_END_BYTES = 20
SMALL_SEGMENTS = Load(topic_settings=("segment.bytes=65536",))


def flip(path: Path, position: int) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0x10]))


def _segments(run: Run, partition: int) -> list[Path]:
    return sorted((run.broker.data_dir / "topics" / TOPIC).glob(f"*/{partition}/*.log"))


def bit_flip(run: Run) -> None:
    """One bit of a closed segment flips: found, not served, not deleted; the rest goes on."""
    run.start_brokers()
    run.start_load()
    while len(_segments(run, 0)) < 3 and run.result.passed:
        run.await_acks(_ACKS_BETWEEN)
    run.stop_load()
    run.broker.stop()
    victim = _segments(run, 0)[0]
    position = victim.stat().st_size // 2
    run.fault("bit flip")
    flip(victim, position)
    damaged = victim.read_bytes()
    run.broker.start()
    run.expect(not run.read_all(seconds_max=15.0), "a damaged partition was read to its end")
    run.expect(victim.name in run.broker.output, "the broker did not name the damaged file")
    run.expect(victim.read_bytes() == damaged, "the broker changed a file that it cannot trust")
    run.proof(f"bit flipped at byte {position} of {victim.name}; its partition ended early")
    run.broker.kill()
    # With the bit as it was everything is there again: nothing was deleted, cut or rewritten.
    flip(victim, position)
    run.restart(run.broker)
    run.finish()


def metadata_damage(run: Run) -> None:
    """Flip and shorten the small files: the broker refuses to start or makes them again."""
    run.start_brokers()
    run.start_load()
    run.await_acks(3 * _ACKS_BETWEEN)
    run.stop_load()
    run.broker.stop()
    root = run.broker.data_dir
    index = sorted((root / "topics" / TOPIC).glob("*/0/*.index"))
    metadata = sorted((root / "metadata").glob("*.log"))
    if not index or not metadata:
        raise ScenarioError(f"no index or metadata log in {root}")
    victims = [root / "votes", root / "broker.json", metadata[-1], index[0]]
    for victim in victims:
        for kind, damage in damages(victim):
            damage_files(run, run.broker, victim, kind, damage)
    run.restart(run.broker)
    run.finish()


def flip_middle(path: Path) -> None:
    """Change a bit in the middle of what is written in a file."""
    # Room that was taken in advance is zeros: the bit is one of what was written. Segments begin
    # with a page that is written twice, so the bit is one of their batches.
    size = len(path.read_bytes().rstrip(b"\0"))
    head = _HEADER_BYTES if path.suffix == ".log" else 0
    flip(path, head + (size - head) // 2)


def flip_last(path: Path) -> None:
    """Change a bit at the end of what is written: what lies before it may have been replaced by a
    snapshot, and is not read again."""
    flip(path, len(path.read_bytes().rstrip(b"\0")) - _FROM_END_BYTES)


def shorten(path: Path) -> None:
    """Keep two thirds of what is written in a file."""
    data = path.read_bytes().rstrip(b"\0")
    head = _HEADER_BYTES if path.suffix == ".log" else 0
    path.write_bytes(data[: head + (len(data) - head) * 2 // 3])


def damages(path: Path) -> list[tuple[str, Callable[[Path], None]]]:
    """What can be done to a file so that it hits what a broker reads."""
    is_metadata_log = path.parent.name == "metadata" and path.suffix == ".log"
    return [("flipped", flip_last if is_metadata_log else flip_middle), ("shortened", shorten)]


def damage_files(
    run: Run, node: Node, victim: Path, kind: str, damage: Callable[[Path], None]
) -> None:
    """Start a stopped broker with a damaged file; afterwards it is stopped.

    Its files are as before then, unless it took part in a cluster: nobody may go back in time.
    """
    name = f"{victim.parent.name}/{victim.name}" if victim.suffix == ".log" else victim.name
    files = {path: path.read_bytes() for path in _files(node)}
    run.fault(f"{kind} {victim.name}")
    damage(victim)
    damaged = victim.read_bytes()
    run.expect(damaged != files[victim], f"{name} was not damaged")
    before = len(node.output)
    try:
        run.start(node)
    except NodeError:
        said = node.output[before:]
        run.expect("Traceback" not in said, f"{name} {kind}: the start ended with a traceback")
        run.expect(victim.name in said, f"{name} {kind}: the refusal does not name the file")
        run.expect(victim.read_bytes() == damaged, f"{name} {kind}: the file was changed")
        run.proof(f"{name} {kind}: refused to start")
        has_served = False
    else:
        has_served = True
        whole = run.read_all(seconds_max=10.0)
        node.stop()
        run.expect(whole, f"{name} {kind}: started, but not everything could be read")
        run.proof(f"{name} {kind}: started, and everything could be read")
    gone = [path for path in files if path.suffix == ".log" and not path.exists()]
    run.expect(not gone, f"{name} {kind}: {len(gone)} log files were deleted")
    if len(run.nodes) == 1 or not has_served:
        for path, data in files.items():
            path.write_bytes(data)


def _files(node: Node) -> list[Path]:
    return [path for path in node.data_dir.rglob("*") if path.is_file()]
