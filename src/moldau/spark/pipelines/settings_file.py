"""Reads pipeline settings from YAML or JSON files, and Spark settings from .conf files.

A file has `kind`, `name` and the settings of that kind; see docs/spark/pipelines.md. `${NAME}` in a
text is replaced by that environment variable, so that files need not contain secrets.
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
from moldau.spark.pipelines.kinds import settings_type
from moldau.spark.pipelines.spec import PipelineSettings

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
_CONF_DELIMITER: Final = re.compile(r"\s*[=:]\s*|\s+")


def from_plain(document: Mapping[str, Any]) -> PipelineSettings:
    """The settings of a parsed file.

    Raises InvalidArgumentError for an unknown kind or setting, and for an invalid value.
    """
    kind = document.get("kind")
    made = settings_type(kind)
    known = [field.name for field in dataclasses.fields(made)]
    if unknown := document.keys() - {"kind", *known}:
        raise InvalidArgumentError(
            f"unknown setting {min(unknown)!r} of {kind}", hint=f"settings: {', '.join(known)}"
        )
    try:
        # Not strict: in a file, a number may be quoted.
        return msgspec.convert(document, made, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        problem = f"{path.rstrip('`')}: {text}" if path else text
        raise InvalidArgumentError(f"invalid settings of {kind}: {problem}") from None


def read_file(path: Path) -> dict[str, Any]:
    """The content of a YAML or JSON file, for `from_plain`."""
    try:
        found = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{path} is neither YAML nor JSON: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(found, dict):
        raise InvalidArgumentError(
            f"{path} does not declare a pipeline",
            hint="it must contain, for example: kind: archive",
        )
    return {str(name): _expanded(value, path) for name, value in found.items()}


def _expanded(value: Any, path: Path) -> Any:
    if isinstance(value, str):

        def replaced(match: re.Match[str]) -> str:
            if (found := os.environ.get(match[1])) is not None:
                return found
            raise InvalidArgumentError(
                f"{path} needs the environment variable {match[1]}, which is not set",
                hint=f"export {match[1]}=…",
            )

        return _VARIABLE.sub(replaced, value)
    if isinstance(value, list):
        return [_expanded(each, path) for each in value]
    if isinstance(value, dict):
        # Options are texts, but YAML parses some as numbers and booleans.
        found = {str(name): _expanded(each, path) for name, each in value.items()}
        return {
            name: json.dumps(each) if isinstance(each, bool | int | float) else each
            for name, each in found.items()
        }
    return value


def read_conf(path: Path) -> dict[str, str]:
    """Spark settings from a file such as spark-defaults.conf: `key value` or `key=value`."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is not a text file: {error}") from error
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            name, *value = _CONF_DELIMITER.split(line, maxsplit=1)
            if not value:
                # Do not quote the line: it may be a secret.
                raise InvalidArgumentError(
                    f"line {number} of {path} is not a valid Spark setting",
                    hint="write: spark.executor.memory 4g · or: spark.executor.memory=4g",
                )
            found[name] = value[0]
    return found


def check_conf(conf: Mapping[str, str]) -> None:
    """Rejects settings that Spark would silently ignore, or that have their own option."""
    for name in conf:
        if not name.startswith("spark."):
            raise InvalidArgumentError(
                f"{name!r} is not a valid Spark setting: their names begin with spark.",
                hint="set options of the source with --option KEY=VALUE",
            )
        if name in ("spark.master", "spark.remote"):
            raise InvalidArgumentError(f"{name} cannot be set by --conf", hint="use --master URL")
