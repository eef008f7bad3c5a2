"""The corpora: seeds in the repository, and what runs on this machine have found to be of use."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fuzz.target import Target

SEEDS: Final = Path(__file__).parent / "corpus"
GROWN: Final = Path("build/fuzz/corpus")
"""Not in the repository: it grows without bound."""
REGRESSION: Final = "was-"
"""Seeds with this prefix are findings of the past. They are kept when seeds are written again."""


def seeds_of(target: Target) -> list[Path]:
    return sorted((SEEDS / target.name).glob("*"))


def write_seeds(target: Target) -> int:
    """Write the seeds of a target again; returns their number."""
    folder = SEEDS / target.name
    for old in seeds_of(target):
        if not old.name.startswith(REGRESSION):
            old.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for name, data in _named(target):
        (folder / name).write_bytes(data)
        written += 1
    return written


def keep_input(target: Target, kind: str, data: bytes) -> Path:
    """Make the input of a finding a seed."""
    folder = SEEDS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(data).hexdigest()[:8]
    path = folder / f"{REGRESSION}{kind.lower()}-{digest}"
    path.write_bytes(data)
    return path


def _named(target: Target) -> Iterator[tuple[str, bytes]]:
    seeds = target.seeds()
    yield from seeds.items() if hasattr(seeds, "items") else seeds


def grown_of(target: Target) -> Path:
    folder = GROWN / target.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def forget_grown() -> None:
    shutil.rmtree(GROWN, ignore_errors=True)
