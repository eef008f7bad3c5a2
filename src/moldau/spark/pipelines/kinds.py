"""The kinds of pipelines.

Each kind is a package `moldau.spark.pipelines.<kind>` (or a module) with

    SETTINGS: type[PipelineSettings]                        # a frozen dataclass
    def plan(settings) -> Plan                              # without Spark: brokers and tables only
    def run(settings, context: PipelineContext) -> Outcome  # to its end, or until it is stopped

and a command line `moldau.cli.pipeline.<kind>`, listed in `moldau.cli.pipeline.kinds`.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Final

from moldau.client.errors import InvalidArgumentError


def _archive() -> ModuleType:
    from moldau.spark.pipelines import archive

    return archive


def _compact() -> ModuleType:
    from moldau.spark.pipelines import compact

    return compact


def _replay() -> ModuleType:
    from moldau.spark.pipelines import replay

    return replay


def _aggregate() -> ModuleType:
    from moldau.spark.pipelines import aggregate

    return aggregate


def _audit() -> ModuleType:
    from moldau.spark.pipelines import audit

    return audit


# Imported on use: a kind needs Spark, and none needs the packages of all.
_LOADERS: Final[dict[str, Callable[[], ModuleType]]] = {
    "archive": _archive,
    "compact": _compact,
    "replay": _replay,
    "aggregate": _aggregate,
    "audit": _audit,
}


def load(kind: object) -> ModuleType:
    """Imports a kind. Raises InvalidArgumentError for an unknown one."""
    loader = _LOADERS.get(kind) if isinstance(kind, str) else None
    if loader is None:
        raise InvalidArgumentError(
            f"unknown kind of pipeline {kind!r}", hint=f"kind must be one of {', '.join(_LOADERS)}"
        )
    return loader()
