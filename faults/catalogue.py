"""Owns the list of scenarios: number, title, what is expected, what each needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from faults.run import Load, Run
from faults.scenarios import damage, disks, network, processes, upkeep
from faults.storage.volumes import cannot_mount


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One line of the list. Without `play` it needs what is not there yet."""

    name: str
    """Its number, or a word for those that stand beside the list."""
    title: str
    expected: str
    play: Callable[[Run], None] | None = None
    load: Load = field(default_factory=Load)
    volumes: bool = False
    """Needs file systems of its own."""

    def missing(self, scratch: Path) -> str:
        """Why it cannot be played here; empty if it can."""
        if self.play is None:
            return "needs a cluster"
        return cannot_mount(scratch) if self.volumes else ""


SCENARIOS: list[Scenario] = [
    Scenario(name="1", title="SIGKILL leader, many times", expected="p50 ≤ 2 s, p99 ≤ 4 s"),
    Scenario(name="2", title="SIGKILL follower", expected="no failed produce"),
    Scenario(
        name="3",
        title="SIGKILL all",
        expected="every acked record present after restart",
        play=processes.kill_all,
    ),
    Scenario(
        name="4",
        title="SIGSTOP leader, resume",
        expected="no stale read or ack",
        play=processes.pause,
    ),
    Scenario(
        name="5",
        title="pause one, write, power-cut another, resume, pause the third",
        expected="unavailable, or everything present",
    ),
    Scenario(name="6", title="isolate leader both ways", expected="minority never acks"),
    Scenario(name="7", title="leader sends, cannot receive", expected="steps down"),
    Scenario(name="8", title="follower sends, cannot receive", expected="no disruption"),
    Scenario(name="9", title="cut A–B only, C sees both", expected="one leader, progress"),
    Scenario(
        name="10",
        title="cut client–leader only",
        expected="no duplicates",
        play=network.cut_clients,
    ),
    Scenario(name="11", title="rejoin after long isolation", expected="no leader change"),
    Scenario(name="12", title="link flaps for minutes", expected="progress ≤ 10 s after heal"),
    Scenario(
        name="13",
        title="200 ms delay, 5 % stalls",
        expected="progress, no election storm",
        play=network.slow,
    ),
    Scenario(name="14", title="power-cut one", expected="rejoins, catches up"),
    Scenario(
        name="15",
        title="power-cut all at once",
        expected="acked lost 0",
        play=disks.power_cut,
        volumes=True,
    ),
    Scenario(
        name="15-torn",
        title="power cut that tears what is unflushed",
        expected="acked lost 0",
        play=disks.power_cut_torn,
    ),
    Scenario(
        name="15-changes",
        title="power cuts that tear, while topics and commits change",
        expected="acked changes last",
        play=disks.torn_changes,
    ),
    Scenario(
        name="15-start",
        title="power cuts that tear, during the start after one",
        expected="acked lost 0",
        play=disks.torn_start,
    ),
    Scenario(
        name="16",
        title="fsync returns EIO",
        expected="fences itself and exits; fsync never retried",
        play=disks.fsync_fails,
    ),
    Scenario(
        name="16-disk",
        title="disk refuses blocks",
        expected="fences itself and exits; data good after repair",
        play=disks.disk_fails,
        volumes=True,
    ),
    Scenario(
        name="17",
        title="ENOSPC",
        expected="no acks, reads go on, heals itself",
        play=disks.disk_full,
        load=disks.FULL_LOAD,
        volumes=True,
    ),
    Scenario(
        name="18",
        title="bit flip in a closed segment",
        expected="found, not served, nothing deleted",
        play=damage.bit_flip,
        load=damage.SMALL_SEGMENTS,
    ),
    Scenario(
        name="19",
        title="flip/truncate vote file, identity, metadata log, index",
        expected="refuses or relearns; deletes nothing",
        play=damage.metadata_damage,
        load=damage.SMALL_SEGMENTS,
    ),
    Scenario(name="20", title="data dir wiped, same id", expected="no vote until relearned"),
    Scenario(
        name="21", title="add/remove/replace during kill + partition", expected="acked lost 0"
    ),
    Scenario(
        name="22",
        title="kill during retention",
        expected="offsets monotonic",
        play=upkeep.kill_during_retention,
        load=upkeep.RETENTION_LOAD,
    ),
    Scenario(
        name="22-torn",
        title="power cut that tears, during retention",
        expected="offsets monotonic",
        play=disks.torn_retention,
        load=upkeep.RETENTION_LOAD,
    ),
    Scenario(
        name="recovery",
        title="start after SIGKILL, by size of the log",
        expected="every acked record present",
        play=processes.recovery,
        load=processes.RECOVERY_LOAD,
    ),
    Scenario(
        name="control",
        title="power cut with log.flush = never",
        expected="the loss is seen",
        play=disks.power_cut_unflushed,
        volumes=True,
    ),
    Scenario(
        name="control-retries",
        title="cut client–leader without idempotence",
        expected="the duplicates are seen",
        play=network.cut_plain_clients,
        load=network.PLAIN_LOAD,
    ),
    Scenario(
        name="control-torn",
        title="volatile cache with log.flush = never",
        expected="the loss is seen",
        play=disks.torn_unflushed,
    ),
]
