"""Owns the way from what Spark raises to what a person can do something with.

Our own errors come back from Spark's Python processes as text inside a trace inside an exception.
The last error of ours that is named in it is what happened; Spark's words go to the log.
"""

import re
from typing import Final

from moldau.client.errors import ClientError
from moldau.spark.pipelines.registry import extra_missing

_OURS: Final = re.compile(r"^\s*(?:\w+: )?moldau\.[\w.]+: (?P<text>\S.*)$", re.MULTILINE)
_HINT: Final = re.compile(r"^\s*hint: (?P<text>\S.*)$", re.MULTILINE)
_PYTHON: Final = re.compile(
    r"^(?P<text>(?:[A-Za-z_][\w.]*)?(?:Error|Exception)\b: \S.*)$", re.MULTILINE
)
_CONDITION: Final = re.compile(r"^\[(?P<name>[A-Z][A-Z0-9_.]+)\]\s*")
_TEXT_CHARACTERS_MAX: Final = 500
_BUSY: Final = "Python worker failed to connect back"
_BUSY_HINT: Final = (
    "Spark gives a Python process ten seconds to start: the machine is busy; start it again later"
)


class PipelineError(ClientError):
    """A pipeline that ended with an error of Spark's, or of what it runs."""


def readable(error: BaseException) -> ClientError | None:
    """An error of Spark's, or of a Spark that is missing, as one of ours; None for others."""
    if isinstance(error, ImportError):
        return extra_missing(error)
    module = type(error).__module__
    if not module.startswith(("pyspark.", "py4j.")):
        return None
    return from_text(str(error))


def from_text(text: str) -> PipelineError:
    """What a text of Spark's comes to."""
    ours = list(_OURS.finditer(text))
    if ours:
        hints = _HINT.findall(text, ours[-1].end())
        return PipelineError(_cut(ours[-1]["text"]), hint=hints[0] if hints else "")
    python = list(_PYTHON.finditer(text))
    if python:
        return PipelineError(_cut(python[-1]["text"]))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else "Spark failed without a word"
    hint = _BUSY_HINT if _BUSY in text else ""
    return PipelineError(_cut(_CONDITION.sub("", first) or first), hint=hint)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _TEXT_CHARACTERS_MAX else text[: _TEXT_CHARACTERS_MAX - 1] + "…"
