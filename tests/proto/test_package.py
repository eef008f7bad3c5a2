"""The wheel carries the definition of the queue API, beside the modules generated from it."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_the_proto_file() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    ((source, target),) = build["targets"]["wheel"]["force-include"].items()
    assert (ROOT / source).is_file()
    assert (ROOT / "src" / target).with_name("queue_pb2.py").is_file()
