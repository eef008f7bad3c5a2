"""Builds the background work on stored data: retention, repair, compaction and scrubbing."""

from moldau.data.cleaner import Cleaner, CleanerConfig
from moldau.data.disk_space import DiskGuard
from moldau.data.maintenance import Maintenance
from moldau.data.partitions import Partitions
from moldau.data.replica_repair import ReplicaRepair
from moldau.data.replica_safety import ReplicaSafety
from moldau.data.replicated_offsets import ReplicatedOffsets
from moldau.data.scrub import Scrubber
from moldau.model.clock import Clock
from moldau.replica.flusher import Flusher
from moldau.server.config.schema import ServerConfig
from moldau.server.derived_config import upkeep_config
from moldau.server.machine import LogCleaner
from moldau.server.storage import Storage


def build_upkeep(
    config: ServerConfig,
    partitions: Partitions,
    storage: Storage,
    disk: DiskGuard,
    clock: Clock,
    safety: ReplicaSafety,
) -> Maintenance:
    repair = ReplicaRepair(
        partitions=partitions, set_aside=storage.move_to_strays, may_rebuild=safety.may_rebuild
    )
    return Maintenance(
        config=upkeep_config(config),
        partitions=partitions,
        disk=disk,
        clock=clock,
        free_bytes=storage.free_bytes,
        repair=repair.step,
    )


def build_cleaner(
    config: ServerConfig,
    partitions: Partitions,
    storage: Storage,
    flusher: Flusher,
    clock: Clock,
    process: LogCleaner,
    offsets: ReplicatedOffsets,
) -> Cleaner:
    limits = config.log
    return Cleaner(
        config=CleanerConfig(
            check_seconds=limits.compaction_check_ms / 1000,
            retry_seconds=limits.compaction_check_ms / 1000,
            map_bytes_max=limits.compaction_map_bytes,
        ),
        partitions=partitions,
        flusher=flusher,
        clock=clock,
        run_command=process.run,
        replicated_offsets=offsets.query,
        free_bytes=lambda: storage.free_bytes() - limits.disk_reserve_bytes,
    )


def build_scrub(config: ServerConfig, partitions: Partitions, safety: ReplicaSafety) -> Scrubber:
    return Scrubber(
        partitions=partitions,
        interval_seconds=config.log.scrub_interval_ms / 1000,
        bytes_per_second=config.log.scrub_bytes_per_second,
        can_lose=safety.can_lose,
    )
