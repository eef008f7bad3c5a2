"""Deletes old backups, and the files that no other one needs."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from moldau.client.backup.manifests import (
    BackupDamagedError,
    data_paths,
    delete_manifest,
    load_manifest,
    manifest_numbers,
    require_mark,
)
from moldau.client.backup.stores import BackupStore
from moldau.client.errors import ClientError


class Pruned(NamedTuple):
    backups: Sequence[int]
    files: int


def check_selection(store: BackupStore, selection: Sequence[str]) -> None:
    """Raises ClientError if there are backups of other topics: keeping the newest ones would delete
    a backup of all topics for one of a few."""
    for number in manifest_numbers(store):
        # Of a damaged one nothing is known: `prune` stops at it, after the backup.
        with suppress(BackupDamagedError):
            if load_manifest(store, number).selection != tuple(selection):
                raise ClientError(
                    f"{store.place} has backups of other topics (backup {number}), which --keep "
                    "would delete, too: no backup was made",
                    hint="choose a directory for each selection of topics, or leave out --keep",
                )


def prune(store: BackupStore, keep: int) -> Pruned:
    """Keep the newest backups. Cut short, it is repeated. Raises ClientError."""
    with store.locked():
        require_mark(store)
        numbers = manifest_numbers(store)
        kept, old = numbers[-keep:], numbers[:-keep]
        # All are read first: of a damaged one it is not known which files it needs.
        needed = {
            segment.path(copy.topic_id, copy.partition)
            for number in kept
            for copy in load_manifest(store, number).partitions
            for segment in copy.segments
        }
        for number in old:
            delete_manifest(store, number)
        # A backup that is being made has no manifest yet.
        unused = [
            path for path in data_paths(store) if path not in needed and store.is_settled(path)
        ]
        for path in unused:
            store.delete(path)
        return Pruned(old, len(unused))
