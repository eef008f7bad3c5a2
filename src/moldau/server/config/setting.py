"""The description of one setting, beside its type and default."""

from enum import StrEnum

from msgspec import Struct


class Unit(StrEnum):
    """The unit of a number; decides which suffixes a value may have."""

    NONE = ""
    BYTES = "bytes"
    MILLISECONDS = "milliseconds"
    MINUTES = "minutes"


class Setting(Struct, frozen=True):
    """What a setting means, and its bounds."""

    doc: str
    unit: Unit = Unit.NONE
    min: int | None = None
    max: int | None = None
    unlimited: bool = False
    """-1 is allowed and means: no limit."""
    runtime: str = ""
    """The name under which it can be changed while the broker runs; empty: only by a restart."""
