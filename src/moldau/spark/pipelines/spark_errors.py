"""Turns errors of Spark into readable ones.

Our own errors come back from Spark's Python processes as text, inside a traceback inside an
exception. The last one of ours in it is shown; the whole text goes to the log.
"""

import re
from typing import Final

from moldau.client.errors import ClientError, InvalidArgumentError

_OURS: Final = re.compile(r"^\s*(?:\w+: )?moldau\.[\w.]+: (?P<text>\S.*)$", re.MULTILINE)
_HINT: Final = re.compile(r"^\s*hint: (?P<text>\S.*)$", re.MULTILINE)
_PYTHON: Final = re.compile(
    r"^(?P<text>(?:[A-Za-z_][\w.]*)?(?:Error|Exception)\b: \S.*)$", re.MULTILINE
)
_CONDITION: Final = re.compile(r"^\[(?P<name>[A-Z][A-Z0-9_.]+)\]\s*")
_TEXT_CHARACTERS_MAX: Final = 500
WORKER_TIMED_OUT: Final = "Python worker failed to connect back"


class PipelineError(ClientError):
    """A pipeline failed with an error of Spark, or of a task."""


def readable(error: BaseException) -> ClientError | None:
    """An error of Spark, or of a missing package, as one of ours; None for others."""
    if isinstance(error, ModuleNotFoundError):
        return missing_extra(error)
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        return from_text(str(error))
    return None


def missing_extra(error: ModuleNotFoundError) -> InvalidArgumentError:
    """All packages that pipelines import come with the extra."""
    return InvalidArgumentError(
        f"the Python package {(error.name or str(error)).partition('.')[0]} is not installed",
        hint='pipelines need the extra: pip install "moldau[spark]"',
    )


def from_text(text: str) -> PipelineError:
    """The error in a text of Spark."""
    if ours := list(_OURS.finditer(text)):
        hints = _HINT.findall(text, ours[-1].end())
        return PipelineError(_shortened(ours[-1]["text"]), hint=hints[0] if hints else "")
    if python := _PYTHON.findall(text):
        return PipelineError(_shortened(python[-1]))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else "Spark failed without a message"
    is_busy = WORKER_TIMED_OUT in text
    hint = "a Python worker did not start within 10 s: is the machine busy? retry later"
    message = _shortened(_CONDITION.sub("", first) or first)
    return PipelineError(message, hint=hint if is_busy else "")


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _TEXT_CHARACTERS_MAX else text[: _TEXT_CHARACTERS_MAX - 1] + "…"
