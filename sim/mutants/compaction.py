"""Mistakes of compaction."""

from collections.abc import Sequence

from moldau.log.keymap import KeyMap
from sim.mutants import Mutant, Patch
from sim.mutants.raft import ELECTIONS


def _newer_than_all(self: KeyMap, keys: Sequence[bytes | None]) -> list[int]:
    return [offset + 1 if offset >= 0 else offset for offset in _newest(self, keys)]


_newest = KeyMap.newest


def _mutant(name: str, about: str, faults: dict[str, float], *patches: Patch) -> Mutant:
    return Mutant(
        name=name,
        layer="log",
        about=about,
        patches=lambda: list(patches),
        faults=faults,
        plan={"keyed": 2},
    )


MUTANTS = (
    _mutant(
        "RemovesTheLast",
        "the last record of a key is removed with those before it",
        ELECTIONS,
        (KeyMap, "newest", _newer_than_all),
    ),
)
