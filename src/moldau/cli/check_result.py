"""Results of the checks of `moldau doctor`."""

from enum import StrEnum
from typing import NamedTuple


class CheckStatus(StrEnum):
    OK = "ok"
    WARNING = "warning"
    TROUBLE = "trouble"


class CheckResult(NamedTuple):
    """One line of the report."""

    check: str
    verdict: CheckStatus
    detail: str
    hint: str = ""
    """The command that mends it."""
    why: str = ""
    """Why it matters."""
    unreachable: bool = False
    """Nothing responds, and so nothing more could be checked."""


def ok(check: str, detail: str) -> CheckResult:
    return CheckResult(check, CheckStatus.OK, detail)


def warning(check: str, detail: str, hint: str = "", why: str = "") -> CheckResult:
    return CheckResult(check, CheckStatus.WARNING, detail, hint, why)


def trouble(check: str, detail: str, hint: str = "", why: str = "") -> CheckResult:
    return CheckResult(check, CheckStatus.TROUBLE, detail, hint, why)
