"""The file `format`: which version of the formats on disk a data directory has.

It is read before anything else, and by every version. So an older broker refuses a directory that a
newer one has written, instead of taking what it does not know for damage: a flush mark of another
version would look as if nothing had been flushed.

A format is only raised by what an older version must not read. What is added in a way that older
versions skip needs a feature level at most.
"""

import json
from typing import Final

from moldau.log.filesystem import Files
from moldau.model.errors import ConfigError, CorruptionError
from moldau.version import __version__

FORMAT_FILE: Final = "format"
DATA_FORMAT: Final = 1
"""What this version writes, and the newest that it reads."""


def check_format(files: Files) -> None:
    """Raises ConfigError for a directory of a newer version, CorruptionError for a damaged file.

    A directory without the file has format 1: the first versions did not write it.
    """
    if not files.exists(FORMAT_FILE):
        return
    try:
        entry = json.loads(files.read(FORMAT_FILE))
        found, writer = int(entry["format"]), str(entry["written_by"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"{FORMAT_FILE} cannot be read: {error}. Nothing was changed; write "
            f'{{"format": {DATA_FORMAT}, "written_by": "{__version__}"}} into it if no newer '
            "version has ever run here"
        ) from None
    if found > DATA_FORMAT:
        raise ConfigError(
            f"the data directory has format {found}, written by moldau {writer}; this is moldau "
            f"{__version__}, which reads formats up to {DATA_FORMAT}: install moldau {writer} or "
            "newer. Nothing was changed"
        )


def write_format(files: Files) -> None:
    """Durable when it returns; of a directory that has an older format or none."""
    known = json.loads(files.read(FORMAT_FILE)) if files.exists(FORMAT_FILE) else {}
    if known.get("format") != DATA_FORMAT:
        entry = {"format": DATA_FORMAT, "written_by": __version__}
        files.replace(FORMAT_FILE, json.dumps(entry).encode() + b"\n")
