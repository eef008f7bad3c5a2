"""Responsible for what a checkpoint of Spark's says: which query it is of, and how far that is.

A checkpoint has a file in `offsets/` for each batch that was begun and one in `commits/` for each
that is done. Files begin with a version and a line about the batch; then comes a line per source.
"""

import json
from collections.abc import Mapping

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.model.ids import TopicPartition
from moldau.spark.lake.storage import Folder, folder_at, normal_location
from moldau.spark.source.positions import Positions


class CheckpointError(ClientError):
    """A checkpoint that is not as it should be."""


def checkpoint_of(home: str) -> Folder:
    """Of the pipeline that is kept there."""
    return folder_at(f"{normal_location(home, option='--home')}/checkpoint", {})


def query_id(checkpoint: Folder) -> str:
    """The query of a checkpoint: the same however often it is started."""
    found = checkpoint.read("metadata")
    if found is None:
        raise CheckpointError(f"the checkpoint {checkpoint.location} has no query")
    try:
        return str(json.loads(found)["id"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"the checkpoint {checkpoint.location} cannot be read: {error!r}",
            hint="begin again: moldau pipeline reset NAME --to earliest",
        ) from error


def batches_in(checkpoint: Folder, folder: str) -> list[int]:
    """The numbers of batches that are still in `offsets` (begun) or in `commits` (done)."""
    names = [found.path.rpartition("/")[2] for found in checkpoint.list(folder)]
    return sorted(int(name) for name in names if name.isdecimal())


def committed_positions(checkpoint: Folder) -> dict[TopicPartition, int]:
    """The next offset of every partition that queries below this folder have read.

    Empty if no batch is done, or if it was no topic that was read.
    """
    last: dict[str, int] = {}
    for found in checkpoint.list():
        folder, _, name = found.path.rpartition("/")
        if f"/{folder}".endswith("/commits") and name.isdecimal():
            query = folder.removesuffix("commits")
            last[query] = max(int(name), last.get(query, 0))
    positions: dict[TopicPartition, int] = {}
    for query, batch in sorted(last.items()):
        for place, offset in _read(checkpoint, f"{query}offsets/{batch}").items():
            # Several queries of one pipeline: the one that is behind says how far it is.
            positions[place] = min(offset, positions.get(place, offset))
    return positions


def _read(checkpoint: Folder, path: str) -> Mapping[TopicPartition, int]:
    lines = (checkpoint.read(path) or b"").decode("utf-8", "replace").splitlines()
    offsets: dict[TopicPartition, int] = {}
    for line in lines[2:]:
        try:
            offsets |= Positions.from_json(json.loads(line)).offsets
        except (json.JSONDecodeError, AttributeError, InvalidArgumentError):
            # Another source's, or one that has not begun.
            continue
    return offsets
