"""Owns what a broker has open in its data directory: lock, identity, votes, logs."""

import uuid
from pathlib import Path
from typing import Final

from moldau.log.datadir import (
    METADATA_PATH,
    VOTES_PATH,
    DirectoryLock,
    Identity,
    delete_partition,
    load_identity,
    partition_path,
    purge_deleted,
)
from moldau.log.disk import open_disk_log
from moldau.log.files import OsFiles
from moldau.log.interface import LogConfig, PartitionLog
from moldau.log.votes import VoteJournal
from moldau.model.errors import StorageError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.replica.election import group_key
from moldau.server.config.schema import ServerConfig

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = TopicId(bytes(15) + b"\x01")
"""As in Kafka, where the metadata log has this id in every cluster."""


class Storage:
    """A data directory, locked while it is open."""

    def __init__(self, root: Path, lock: DirectoryLock, files: OsFiles, identity: Identity) -> None:
        self._root = root
        self._lock = lock
        self._files = files
        self.cluster_id = identity.cluster_id
        self.directory_id = identity.directory_id
        self.votes = VoteJournal.open(files, VOTES_PATH)

    @classmethod
    def open(cls, config: ServerConfig) -> "Storage":
        """Raises ConfigError, CorruptionError or StorageError; the lock is free again then."""
        root = Path(config.data_dir).absolute()
        lock = DirectoryLock(root)
        lock.acquire()
        try:
            files = OsFiles(root)
            identity = load_identity(
                files,
                Identity(
                    broker_id=BrokerId(1 if config.broker_id is None else config.broker_id),
                    cluster_id=config.cluster_id or str(uuid.uuid4()),
                    directory_id=str(uuid.uuid4()),
                ),
            )
            purge_deleted(files)
            return cls(root, lock, files, identity)
        except OSError as error:
            lock.release()
            raise StorageError(f"cannot use {root} as data directory: {error}") from error
        except BaseException:
            lock.release()
            raise

    def open_log(
        self, topic: str, topic_id: TopicId, partition: PartitionIndex, config: LogConfig
    ) -> PartitionLog:
        return open_disk_log(self._files, partition_path(topic, topic_id, partition), config)

    def drop_log(self, topic: str, topic_id: TopicId, partition: PartitionIndex) -> None:
        """Delete the log of a partition whose topic is gone."""
        try:
            delete_partition(self._files, topic, topic_id, partition)
        except OSError as error:
            raise StorageError(f"{topic}-{partition} could not be deleted: {error}") from error
        self.votes.forget(frozenset({group_key(topic_id, partition)}))

    def open_metadata_log(self, config: LogConfig) -> PartitionLog:
        return open_disk_log(self._files, METADATA_PATH, config)

    def free_bytes(self) -> int:
        return self._files.free_bytes()

    def total_bytes(self) -> int:
        return self._files.total_bytes()

    def close(self) -> None:
        self.votes.close()
        self._lock.release()
