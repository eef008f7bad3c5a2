"""Owns how far a checkpoint of Spark's says that a query is in its topics.

A checkpoint has a file in `offsets/` for each batch that was begun and one in `commits/` for each
that is done. Files begin with a version and a line about the batch; then comes a line per source.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import TopicPartition
from moldau.spark.source.positions import Positions


def committed_positions(checkpoint: Path) -> dict[TopicPartition, int]:
    """The next offset of every partition that queries below this folder have read.

    Empty if no batch is done, or if it was no topic that was read.
    """
    found: dict[TopicPartition, int] = {}
    for folder in sorted(checkpoint.rglob("offsets")):
        done = _last_number(folder.with_name("commits"))
        if done is not None and folder.is_dir():
            for place, offset in _read(folder / str(done)).items():
                # Several queries of one pipeline: the one that is behind says how far it is.
                found[place] = min(offset, found.get(place, offset))
    return found


def _last_number(folder: Path) -> int | None:
    if not folder.is_dir():
        return None
    return max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=None)


def _read(path: Path) -> Mapping[TopicPartition, int]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    offsets: dict[TopicPartition, int] = {}
    for line in lines[2:]:
        try:
            offsets |= Positions.from_json(json.loads(line)).offsets
        except (json.JSONDecodeError, AttributeError, InvalidArgumentError):
            # Another source's, or one that has not begun.
            continue
    return offsets
