"""Responsible for settings of pipelines as plain values: in files, and without secrets.

A file has `kind`, `name` and the settings of that kind; see docs/spark/pipelines.md. `${NAME}` in a
text is replaced by that variable of the environment, so that secrets need not stand in the file.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.spec import PipelineSettings, load

MASK: Final = "******"

_SECRET_WORDS: Final = "password|passwd|secret|token|credential|jaas"
_SECRET: Final = re.compile(rf"{_SECRET_WORDS}|key|auth", re.IGNORECASE)
"""Names of options whose values are for nobody's eyes."""
_ASSIGNED: Final = re.compile(rf"((?:{_SECRET_WORDS})[\w.-]*[=:])\S+", re.IGNORECASE)
"""The same among many words of an option, such as those for Java."""
_IN_ADDRESS: Final = re.compile(r"(\w://[^/@:\s]*:)[^/@\s]+(?=@)")
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
_CONF_DELIMITER: Final = re.compile(r"\s*[=:]\s*|\s+")


def without_secrets(settings: PipelineSettings) -> dict[str, Any]:
    """As plain values for everyone's eyes."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    return {"kind": settings.kind, **{name: masked(value) for name, value in plain.items()}}


def masked(value: Any) -> Any:
    """Without passwords in addresses, and without the secrets of options."""
    if isinstance(value, str):
        return _IN_ADDRESS.sub(rf"\1{MASK}", value)
    if isinstance(value, list | tuple):
        return [masked(each) for each in value]
    if isinstance(value, dict):
        return {
            name: MASK
            if _SECRET.search(name)
            else masked(_ASSIGNED.sub(rf"\1{MASK}", each) if isinstance(each, str) else each)
            for name, each in value.items()
        }
    return value


def from_plain(document: Mapping[str, Any]) -> PipelineSettings:
    """Settings of the kind that is named.

    Raises InvalidArgumentError for an unknown kind or setting, and for a value that does not fit.
    """
    kind = document.get("kind")
    settings_type: type[PipelineSettings] = load(kind).SETTINGS
    known = [field.name for field in dataclasses.fields(settings_type)]
    if unknown := document.keys() - {"kind", *known}:
        raise InvalidArgumentError(
            f"{kind} has no setting {min(unknown)!r}", hint=f"known are {', '.join(known)}"
        )
    try:
        # Not strict: in a file, a number may be a text.
        return msgspec.convert(document, settings_type, strict=False)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        told = f"{place.rstrip('`')}: {text}" if place else text
        raise InvalidArgumentError(f"these are no settings of {kind}: {told}") from None


def read_file(path: Path) -> dict[str, Any]:
    """What a YAML or JSON file declares, for `from_plain`."""
    try:
        found = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            f"{path} is neither YAML nor JSON: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(found, dict):
        raise InvalidArgumentError(
            f"{path} declares no pipeline", hint="it must begin as in: kind: archive"
        )
    return {str(name): _expanded(value, path) for name, value in found.items()}


def _expanded(value: Any, path: Path) -> Any:
    if isinstance(value, str):

        def replaced(match: re.Match[str]) -> str:
            if (found := os.environ.get(match[1])) is not None:
                return found
            raise InvalidArgumentError(
                f"{path} wants the variable {match[1]}, which is not set",
                hint=f"export {match[1]}=…",
            )

        return _VARIABLE.sub(replaced, value)
    if isinstance(value, list):
        return [_expanded(each, path) for each in value]
    if isinstance(value, dict):
        # Options are texts; in YAML they look like numbers and flags, too.
        found = {str(name): _expanded(each, path) for name, each in value.items()}
        return {
            name: json.dumps(each) if isinstance(each, bool | int | float) else each
            for name, each in found.items()
        }
    return value


def read_conf(path: Path) -> dict[str, str]:
    """Settings of Spark from a file such as spark-defaults.conf: `key value` or `key=value`."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is no text: {error}") from error
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            name, *value = _CONF_DELIMITER.split(line, maxsplit=1)
            if not value:
                # Not the line itself: it may be a secret.
                raise InvalidArgumentError(
                    f"line {number} of {path} is no setting of Spark",
                    hint="write: spark.executor.memory 4g · or: spark.executor.memory=4g",
                )
            found[name] = value[0]
    return found


def check_conf(conf: Mapping[str, str]) -> None:
    """Refuse what Spark would pass over without a word, or what has an option of its own."""
    for name in conf:
        if not name.startswith("spark."):
            raise InvalidArgumentError(
                f"{name!r} is no setting of Spark: they begin with spark.",
                hint="options of the source are given by -o KEY=VALUE",
            )
        if name in ("spark.master", "spark.remote"):
            raise InvalidArgumentError(f"{name} is not set by --conf", hint="use --master URL")
