"""`moldau` with one more kind of pipelines: `count`, which needs no Spark."""

import sys

import counting_kind
import pytest

from moldau.cli.main import run
from moldau.cli.pipeline import run as pipeline_run
from moldau.spark.pipelines import kinds, runner


def add_count(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(kinds.KINDS, "count", counting_kind.CountSettings)
    load = kinds.load
    for module in (kinds, runner):
        patch.setattr(module, "load", lambda kind: counting_kind if kind == "count" else load(kind))
    patch.setattr(pipeline_run, "_check_spark", lambda settings: None)


if __name__ == "__main__":
    add_count(pytest.MonkeyPatch())
    sys.exit(run(sys.argv[1:]))
