"""Responsible for the way from what Spark raises to what a person can do something with.

Our own errors come back from Spark's Python processes as text inside a trace inside an exception.
The last error of ours that is named in it is what happened; Spark's words go to the log.
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


class PipelineError(ClientError):
    """A pipeline that ended with an error of Spark's, or of what it runs."""


def readable(error: BaseException) -> ClientError | None:
    """An error of Spark's, or of a package that is missing, as one of ours; None for others."""
    if isinstance(error, ModuleNotFoundError):
        return missing_extra(error)
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        return from_text(str(error))
    return None


def missing_extra(error: ModuleNotFoundError) -> InvalidArgumentError:
    """What is imported by pipelines is ours, or comes with the extra."""
    return InvalidArgumentError(
        f"the Python package {(error.name or str(error)).partition('.')[0]} is not installed",
        hint='pipelines need the extra: pip install "moldau[spark]"',
    )


def from_text(text: str) -> PipelineError:
    """What a text of Spark's comes to."""
    if ours := list(_OURS.finditer(text)):
        hints = _HINT.findall(text, ours[-1].end())
        return PipelineError(_cut(ours[-1]["text"]), hint=hints[0] if hints else "")
    if python := _PYTHON.findall(text):
        return PipelineError(_cut(python[-1]))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else "Spark failed without a word"
    is_busy = "Python worker failed to connect back" in text
    hint = "the machine is busy: Spark waited for ten seconds; start it again later"
    return PipelineError(_cut(_CONDITION.sub("", first) or first), hint=hint if is_busy else "")


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _TEXT_CHARACTERS_MAX else text[: _TEXT_CHARACTERS_MAX - 1] + "…"
