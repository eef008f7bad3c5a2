"""Owns the names of the flush policies: configuration, topics and logs speak of the same three."""

from enum import StrEnum


class FlushPolicy(StrEnum):
    """When appended bytes are forced to the disk. Only `always` survives a power cut in full."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"
