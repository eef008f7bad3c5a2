"""Owns a home of Spark whose Python processes import PySpark from where it is compiled.

Spark puts `python/lib/pyspark.zip` of its home before all else on the path of its Python processes.
A zip holds no bytecode, so each of them compiles PySpark anew: about a second of a core, for every
kind of worker and every query that starts. A folder that links to all of Spark's home but that
makes them take the installed package, which is the same.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from moldau.spark.java import cache_folder

_LEFT_OUT: Final = frozenset({"python", "__pycache__"})


def prefer_compiled() -> None:
    """Make that home this process's, unless somebody has chosen one, or another Python."""
    if is_chosen(os.environ):
        return
    home = compiled_home()
    if home is not None:
        os.environ["SPARK_HOME"] = str(home)


def is_chosen(environ: Mapping[str, str]) -> bool:
    """Whether the workers' Spark or Python is not the one that is installed here."""
    python = environ.get("PYSPARK_PYTHON", sys.executable)
    return "SPARK_HOME" in environ or python != sys.executable


def compiled_home(spark: Path | None = None, cache: Path | None = None) -> Path | None:
    """The folder; made if it is not there. None where it cannot be, or would be of no use."""
    spark = spark or installed_spark()
    if spark is None or not (spark / "python" / "lib" / "pyspark.zip").is_file():
        return None
    name = f"home-{sha256(str(spark).encode()).hexdigest()[:12]}"
    home = (cache or cache_folder()) / name
    try:
        if not _is_whole(home, spark):
            _make(home, spark)
        return home if _is_whole(home, spark) else None
    except OSError:
        return None  # Without it Python processes start as slowly as they always did.


def installed_spark() -> Path | None:
    """Where pip has put it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def _is_whole(home: Path, spark: Path) -> bool:
    return all((home / name).exists() for name in _names(spark))


def _names(spark: Path) -> list[str]:
    return [found.name for found in spark.iterdir() if found.name not in _LEFT_OUT]


def _make(home: Path, spark: Path) -> None:
    """Under another name first: other processes may do the same at the same time."""
    home.parent.mkdir(parents=True, exist_ok=True)
    part = home.with_name(f"{home.name}.{os.getpid()}.part")
    try:
        part.mkdir()
        for name in _names(spark):
            (part / name).symlink_to(spark / name)
        if home.exists() and not _is_whole(home, spark):
            shutil.rmtree(home)
        part.rename(home)
    finally:
        shutil.rmtree(part, ignore_errors=True)
