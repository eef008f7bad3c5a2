"""The lists of scenarios: number, title, what is expected, what each needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from faults.run import Load, Run
from faults.scenarios import damage, disks, network, processes, upkeep
from faults.scenarios.three import (
    bootstrap,
    compaction,
    controls,
    files,
    members,
    mixed,
    queues,
    starved,
    transactions,
    transform,
)
from faults.scenarios.three import disks as three_disks
from faults.scenarios.three import network as three_network
from faults.scenarios.three import processes as three
from faults.storage.volumes import cannot_mount


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One line of a list."""

    name: str
    """Its number, or a word for those that stand beside the list."""
    title: str
    expected: str
    play: Callable[[Run], None]
    load: Load = field(default_factory=Load)
    volumes: bool = False
    """Needs file systems of its own."""

    def missing(self, scratch: Path) -> str:
        """Why it cannot be played here; empty if it can."""
        return cannot_mount(scratch) if self.volumes else ""


ONE_BROKER: list[Scenario] = [
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
        name="10",
        title="cut client–leader only",
        expected="no duplicates",
        play=network.cut_clients,
    ),
    Scenario(
        name="13",
        title="200 ms delay, 5 % stalls",
        expected="progress, no election storm",
        play=network.slow,
    ),
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

THREE_BROKERS: list[Scenario] = [
    Scenario(
        name="1",
        title="SIGKILL leader, many times",
        expected="p50 ≤ 2 s, p99 ≤ 4 s",
        play=three.kill_leader,
        load=three.LOAD,
    ),
    Scenario(
        name="2",
        title="SIGKILL follower",
        expected="no failed produce",
        play=three.kill_follower,
        load=three.FEW,
    ),
    Scenario(
        name="3",
        title="SIGKILL all",
        expected="every acked record present after restart",
        play=three.kill_all,
        load=three.LOAD,
    ),
    Scenario(
        name="4",
        title="SIGSTOP leader, resume",
        expected="no stale read or ack",
        play=three.pause_leader,
        load=three.LOAD,
    ),
    Scenario(
        name="5",
        title="pause one, write, power-cut another, resume, pause the third",
        expected="unavailable, or everything present",
        play=three_disks.pauses_and_power_cut,
        load=three.LOAD,
        volumes=True,
    ),
    Scenario(
        name="6",
        title="isolate leader both ways",
        expected="minority never acks",
        play=three_network.isolate_leader,
        load=three_network.ONE,
    ),
    Scenario(
        name="7",
        title="leader sends, cannot receive",
        expected="steps down",
        play=three_network.deaf_leader,
        load=three.LOAD,
    ),
    Scenario(
        name="8",
        title="follower sends, cannot receive",
        expected="no disruption",
        play=three_network.deaf_follower,
        load=three.FEW,
    ),
    Scenario(
        name="9",
        title="cut A–B only, C sees both",
        expected="one leader, progress",
        play=three_network.cut_pair,
        load=three.LOAD,
    ),
    Scenario(
        name="10",
        title="cut client–leader only",
        expected="no duplicates",
        play=three_network.cut_clients,
        load=three.LOAD,
    ),
    Scenario(
        name="11",
        title="rejoin after long isolation",
        expected="no leader change",
        play=three_network.rejoin,
        load=three.FEW,
    ),
    Scenario(
        name="12",
        title="link flaps",
        expected="progress ≤ 10 s after heal",
        play=three_network.flap,
        load=three.LOAD,
    ),
    Scenario(
        name="13",
        title="200 ms delay, 5 % stalls",
        expected="progress, no election storm",
        play=three_network.slow,
        load=three.LOAD,
    ),
    Scenario(
        name="14",
        title="power-cut one",
        expected="rejoins, catches up",
        play=three_disks.power_cut_one,
        load=three.LOAD,
        volumes=True,
    ),
    Scenario(
        name="15",
        title="power-cut all at once",
        expected="acked lost 0",
        play=three_disks.power_cut_all,
        load=three.LOAD,
        volumes=True,
    ),
    Scenario(
        name="15-torn",
        title="power cut of all that tears what is unflushed",
        expected="acked lost 0",
        play=three_disks.torn_all,
        load=three.LOAD,
    ),
    Scenario(
        name="16",
        title="fsync returns EIO",
        expected="fences itself and exits; fsync never retried; others go on",
        play=three_disks.fsync_fails,
        load=three.LOAD,
    ),
    Scenario(
        name="16-slow",
        title="flushes take 300 ms more",
        expected="no loss, progress",
        play=three_disks.slow_disk,
        load=three.LOAD,
    ),
    Scenario(
        name="16-many",
        title="SIGKILL with 390 partitions, on disks that take 10 ms more",
        expected="one election each",
        play=three_disks.slow_disks,
        load=three_disks.MANY_LOAD,
    ),
    Scenario(
        name="17",
        title="ENOSPC on one, then all",
        expected="others go on; reads go on; heals itself",
        play=three_disks.disk_full,
        load=three_disks.FULL_LOAD,
        volumes=True,
    ),
    Scenario(
        name="18",
        title="bit flip in a closed segment",
        expected="not served to anyone",
        play=members.bit_flip,
        load=members.SMALL_SEGMENTS,
    ),
    Scenario(
        name="19",
        title="flip/truncate vote file, identity, metadata log and snapshot, index",
        expected="refuses or relearns; deletes nothing",
        play=members.damaged_files,
        load=members.SMALL_SEGMENTS,
    ),
    Scenario(
        name="19-lead",
        title="flip/truncate each kind of file of a broker, then let it lead",
        expected="refuses, relearns or repairs; everything can be read from it",
        play=files.damaged_leader,
        load=files.LOAD,
    ),
    Scenario(
        name="20",
        title="data dir wiped, same id",
        expected="no vote until relearned",
        play=members.wiped,
        load=three.LOAD,
    ),
    Scenario(
        name="20-metadata",
        title="metadata/ deleted, the only other who knows is down",
        expected="no vote until relearned; acked changes last",
        play=bootstrap.lost_metadata,
        load=three.LOAD,
    ),
    *(
        Scenario(
            name=f"bootstrap{'-named' if name else ''}-{end.__name__}",
            title="the bootstrap broker's disk is lost: one was "
            f"{end.__name__} before, {'all call their cluster prod' if name else 'no cluster_id'}",
            expected="bootstraps no second cluster by itself; acked lost 0",
            play=bootstrap.lost_bootstrap_broker(name=name, end=end),
            load=three.LOAD,
        )
        for name in ("", "prod")
        for end in (bootstrap.killed, bootstrap.stopped)
    ),
    Scenario(
        name="21",
        title="add/remove/replace during kill + partition",
        expected="acked lost 0",
        play=members.change_under_faults,
        load=three.LOAD,
    ),
    Scenario(
        name="22",
        title="kill during retention, and while catching up behind it",
        expected="offsets monotonic",
        play=members.kill_during_retention,
        load=members.RETENTION_LOAD,
    ),
    Scenario(
        name="22-compact",
        title="kill during compaction",
        expected="every key's last value is there; offsets never change",
        play=compaction.kill_during_compaction,
        load=compaction.LOAD,
    ),
    Scenario(
        name="23",
        title="coordinator killed between EndTxn and markers; late EndTxn and Produce",
        expected="torn 0; late ones refused; last stable offset advances",
        play=transactions.kill_coordinator,
        load=transactions.LOAD,
    ),
    Scenario(
        name="24",
        title="consume-transform-produce, coordinators and leaders killed or isolated, workers "
        "come and go",
        expected="exactly once",
        play=transform.exactly_once,
        load=transform.LOAD,
    ),
    Scenario(
        name="25",
        title="workers of a queue paused past their leases or killed; leaders of messages and of "
        "the ledger killed, paused or isolated",
        expected="acked once, never seen again; late acks refused; poison among the dead letters",
        play=queues.workers_and_leaders,
        load=queues.LOAD,
    ),
    Scenario(
        name="rolling",
        title="rolling restart under load",
        expected="no failed produce",
        play=three.rolling_restart,
        load=three.LOAD,
    ),
    Scenario(
        name="grow",
        title="a fourth broker joins, the first is removed",
        expected="a new topic uses it; no failed produce",
        play=members.grow_and_shrink,
        load=three.LOAD,
    ),
    Scenario(
        name="move",
        title="SIGKILL while partitions move there and back between four brokers",
        expected="acked lost 0",
        play=members.move_under_faults,
        load=three.LOAD,
    ),
    Scenario(
        name="starved",
        title="all brokers stand still again and again",
        expected="acked lost 0; elections calm down by themselves",
        play=starved.starved,
        load=three.LOAD,
    ),
    Scenario(
        name="metadata",
        title="SIGKILL metadata leader while topics change",
        expected="acked changes last",
        play=three.kill_controller,
        load=three.LOAD,
    ),
    Scenario(
        name="groups",
        title="SIGKILL under a consumer group",
        expected="nothing skipped, commits last",
        play=three.group_failover,
        load=three.GROUP_LOAD,
    ),
    Scenario(
        name="clock",
        title="wall clocks jump",
        expected="no leader change",
        play=three.clock_jump,
        load=three.LOAD,
    ),
    Scenario(
        name="mixed",
        title="kills, pauses and cuts that overlap",
        expected="acked lost 0; goes on soon after",
        play=mixed.mixed,
        load=mixed.LOAD,
    ),
    Scenario(
        name="mixed-torn",
        title="torn power cuts, pauses and cuts that overlap",
        expected="acked lost 0; goes on soon after",
        play=mixed.mixed_power,
        load=mixed.LOAD,
    ),
    Scenario(
        name="recovery",
        title="start after SIGKILL, by size of the log",
        expected="every acked record present",
        play=three.recovery,
        load=three.RECOVERY_LOAD,
    ),
    Scenario(
        name="control-acks",
        title="SIGKILL of an unheard leader with acks=1",
        expected="the loss is seen",
        play=controls.leader_lost_with_acks_one,
        load=controls.ACKS_ONE_LOAD,
    ),
    Scenario(
        name="control-once",
        title="workers come and go, without transactions",
        expected="the duplicates are seen",
        play=transform.without_transactions,
        load=transform.PLAIN_LOAD,
    ),
    Scenario(
        name="control",
        title="power-cut all with log.flush = never",
        expected="the loss is seen",
        play=three_disks.power_cut_all_unflushed,
        load=three.LOAD,
        volumes=True,
    ),
]

SECURED: tuple[str, ...] = ("1", "6", "10", "21", "23", "24", "25", "groups")
"""Of three brokers, those that a secured run plays unless others are named: each kind of client,
new connections of brokers and clients under faults, and brokers that join."""

BY_BROKERS: dict[int, list[Scenario]] = {1: ONE_BROKER, 3: THREE_BROKERS}
