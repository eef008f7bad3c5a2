"""The flush policies of configuration, topics and logs."""

from enum import StrEnum


class FlushPolicy(StrEnum):
    """When appended bytes are flushed. Only with `always` a power failure loses nothing."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"
