"""Owns how a commit changes the snapshots of an Iceberg table, where pyiceberg has no call for it.

pyiceberg replaces files by two snapshots, of which the first has neither the old nor the new ones;
whoever follows the table snapshot by snapshot sees rows vanish and come back. Its producer of
snapshots can do both at once, but is no public part of it: the version is pinned, and the tests of
the lake look at what comes of it.
"""

import time
from collections.abc import Sequence
from typing import Any


def change_files(
    transaction: Any,
    removed: Sequence[Any],
    added: Sequence[str],
    said: dict[str, str],
    *,
    same_rows: bool,
) -> None:
    """One snapshot, with `said` in its summary, without entries `removed` and with new files.

    With `same_rows` it is called a replacement, which readers of changes pass over.
    """
    from pyiceberg.io.pyarrow import parquet_file_to_data_file
    from pyiceberg.table import TableProperties

    metadata = transaction.table_metadata
    if metadata.name_mapping() is None:
        # The files do not hold the ids of the table's columns.
        mapping = metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
    update = transaction.update_snapshot(snapshot_properties=said)
    if same_rows:
        producer = _replacement(transaction, said)
    else:
        producer = update.overwrite() if removed else update.fast_append()
    # A commit that failed may be there after all: then its files are the table's.
    producer._clean_all_uncommitted = lambda: None
    with producer:
        for entry in removed:
            producer.delete_data_file(entry)
        for path in added:
            producer.append_data_file(
                parquet_file_to_data_file(transaction._table.io, metadata, path)
            )


def _replacement(transaction: Any, said: dict[str, str]) -> Any:
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    class Replacement(_OverwriteFiles):
        def _summary(self, snapshot_properties: dict[str, str]) -> Any:
            # pyiceberg counts no totals for replacements, so it is renamed afterwards.
            found = super()._summary(snapshot_properties)
            return Summary(Operation.REPLACE, **found.additional_properties)

    return Replacement(
        operation=Operation.OVERWRITE,
        transaction=transaction,
        io=transaction._table.io,
        snapshot_properties=said,
    )


def expire_snapshots(transaction: Any, *, count_max: int, seconds_max: float) -> None:
    """Forget the oldest, and those that are too old; never what a branch or a tag names."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    metadata = transaction.table_metadata
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    known = sorted(metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)
    before_ms = (time.time() - seconds_max) * 1000
    expired = [
        snapshot.snapshot_id
        for number, snapshot in enumerate(known)
        if snapshot.snapshot_id not in named
        and (snapshot.timestamp_ms < before_ms or number < len(known) - count_max)
    ]
    if expired:
        ExpireSnapshots(transaction).by_ids(expired).commit()
