"""Exit codes of the `moldau` process. Scripts and the supervisor rely on them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Stable. Documented in docs/reference/cli.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    INTERNAL_ERROR = 70
    STORAGE = 74
    CONFIG = 78
    INTERRUPTED = 130
