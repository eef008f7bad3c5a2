"""Owns the differences between the columns of a table's files and those of the table.

A column that only younger files have is how tables grow, and is told without being held against
anybody. A column of another type, or one that the table does not know, is drift: readers of the
table fail on it, or do not see it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from moldau.spark.lake.schemas import same_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    column: str
    in_table: str | None
    """The type; None: the table has no such column."""
    in_files: str | None
    files: int = 1
    example: str = ""

    @property
    def is_harmless(self) -> bool:
        return self.in_files is None

    def __str__(self) -> str:
        count = "1 file" if self.files == 1 else f"{self.files} files"
        if self.in_files is None:
            return f"{count} without the column {self.column}, such as {self.example}"
        if self.in_table is None:
            return (
                f"{count} with a column {self.column} ({self.in_files}) that the table does not "
                f"have, such as {self.example}"
            )
        return (
            f"{count} with {self.column} as {self.in_files}, which is {self.in_table} in the "
            f"table, such as {self.example}"
        )


def drift_of(table: Mapping[str, Any], file: Any, *, path: str) -> list[Drift]:
    """How the schema of one file (pyarrow.Schema) differs from the columns it should have."""
    found = []
    for name, kind in table.items():
        if name not in file.names:
            found.append(Drift(column=name, in_table=str(kind), in_files=None, example=path))
            continue
        has = file.field(name).type
        if not same_type(kind, has):
            found.append(Drift(column=name, in_table=str(kind), in_files=str(has), example=path))
    found += [
        Drift(column=name, in_table=None, in_files=str(file.field(name).type), example=path)
        for name in file.names
        if name not in table
    ]
    return found


def summed(drifts: Iterable[Drift]) -> list[Drift]:
    """Those of the same kind as one, with the count of files."""
    found: dict[tuple[str, str | None, str | None], Drift] = {}
    for drift in drifts:
        key = (drift.column, drift.in_table, drift.in_files)
        known = found.get(key)
        if known is None:
            found[key] = drift
        else:
            example = min(known.example, drift.example)
            found[key] = replace(known, files=known.files + drift.files, example=example)
    return [found[key] for key in sorted(found, key=str)]
