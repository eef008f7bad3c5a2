"""Responsible for how a Spark session is made: Java, the workers' Python, settings for the master.

What is set unless `config` or the caller's own Spark says otherwise stands in `defaults`. A session
that is there already is given back as it is, since Spark has one per process.
"""

import importlib.util
import math
import os
import re
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.spark.hints import tells_hints
from moldau.spark.java import Java, cache_folder, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"

_LOCAL_MASTER = re.compile(r"local(?:\[(\*|[1-9]\d*)(?:\s*,\s*[1-9]\d*)?\])?")
_OTHER_MASTER = re.compile(r"(spark|k8s|sc)://\S+|yarn")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@tells_hints
def session(
    master: str = LOCAL, app_name: str = "moldau", config: Mapping[str, str] | None = None
) -> "SparkSession":
    """The Spark session of this process; made if there is none.

    `master` is `local[N]`, `spark://…`, `k8s://…`, `yarn` or the address of a Connect server,
    `sc://…`. `config` goes before all that is set here. Under `spark-submit`, its master stays.
    """
    config = dict(config or {})
    check_master(master)
    check_installed()
    there = _existing()
    if there is not None:
        _warn_of_conflicts(there, master, config)
        return there
    is_connect = master.startswith("sc://")
    # spark-submit has started Java, and knows master and Python.
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_connect and not is_submitted:
        config = _prepared(master, config)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if is_connect:
        builder = builder.remote(master)
    elif not is_submitted:
        builder = builder.master(master)
    builder = builder.config(map={**defaults(master, config), **config})
    is_loopback = is_local(master) and "SPARK_LOCAL_IP" not in os.environ
    try:
        if is_loopback:
            os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        return builder.getOrCreate()
    finally:
        if is_loopback:
            # Only for Java's start: children such as workers of a cluster may need another.
            del os.environ["SPARK_LOCAL_IP"]


def check_installed() -> None:
    """Raises ClientError where there is no Spark."""
    if importlib.util.find_spec("pyspark") is None:
        hint = "pip install 'moldau[spark]'"
        raise ClientError("Spark is not installed in this Python", hint=hint)


def check_master(master: str) -> None:
    """Refuse what Spark would answer with a trace of Java."""
    if not _LOCAL_MASTER.fullmatch(master) and not _OTHER_MASTER.fullmatch(master):
        raise InvalidArgumentError(
            f"no master of Spark: {master!r}",
            hint="local[*], local[4], spark://HOST:7077, k8s://https://HOST:443, yarn or sc://HOST",
        )


def is_local(master: str) -> bool:
    return master.startswith("local")


def is_this_machine(master: str) -> bool:
    """A master whose workers run what is installed here: local ones, and standalone ones here."""
    here = {"127.0.0.1", "::1", "localhost", socket.gethostname().lower()}
    host = urlsplit(master.partition(",")[0]).hostname if master.startswith("spark:") else None
    return is_local(master) or host in here


def cores_of(master: str, config: Mapping[str, str]) -> int | None:
    """How many tasks run at once, as far as the settings say so."""
    found = _LOCAL_MASTER.fullmatch(master)
    if found is not None:
        if found[1] == "*":
            return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        return int(found[1] or 1)
    executors = config.get("spark.executor.instances", ""), config.get("spark.executor.cores", "1")
    told = (config["spark.cores.max"],) if "spark.cores.max" in config else executors
    return math.prod(map(int, told)) if all(each.isdigit() for each in told) else None


def defaults(master: str, config: Mapping[str, str]) -> dict[str, str]:
    """What is set for a master, unless `config` says otherwise."""
    settings = {
        # Times of records are moments; without it they would be shown in the machine's zone.
        "spark.sql.session.timeZone": "UTC",
        # Spark fails every read of a source that takes filters unless this is set.
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if master.startswith("sc://"):
        return settings
    cores = cores_of(master, config)
    if cores is not None:
        # Spark's 200 made a tiny aggregate of a stream take 18 s on two cores.
        settings["spark.sql.shuffle.partitions"] = str(cores)
    if is_local(master):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            # On a busy machine workers take longer than Spark's 15 s to come up.
            "spark.python.authenticate.socketTimeout": "120s",
        }
    return settings


def _prepared(master: str, config: dict[str, str]) -> dict[str, str]:
    """Tell Spark by environment variables which Java and Python it runs on; what else to set."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    if is_local(master) and "SPARK_HOME" not in os.environ and python == sys.executable:
        home = compiled_home(installed_spark(), cache_folder())
        if home is not None:
            os.environ["SPARK_HOME"] = str(home)
    if is_this_machine(master):
        # Else the workers would take whichever Python comes first in PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    options = java_options(java, config)
    return {**config, _JAVA_OPTIONS: options} if options else config


def java_options(java: Java, config: Mapping[str, str]) -> str:
    """The driver's Java options: the caller's come last, and so go before ours.

    Ours have Java keep an archive of the classes it loaded, and start from it the next time.
    There are none where Java cannot (before 19), where its options say something about it already,
    or where a folder is in its class path: Java takes no archive then.
    """
    theirs = config.get(_JAVA_OPTIONS, "")
    told = (theirs, *map(os.environ.get, ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")))
    is_told = any("share" in each.lower() for each in told if each)
    if java.major < 19 or is_told or os.environ.get("SPARK_CONF_DIR"):
        return theirs
    fits = (java.build, installed_spark(), config.get("spark.driver.extraClassPath"))
    mark = sha256(repr(fits).encode()).hexdigest()[:12]
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return theirs  # Without one Spark starts as slowly as it always did.
    # What is wrong with an archive is told on standard output otherwise; Java goes on without it.
    return (
        f'-XX:+AutoCreateSharedArchive "-XX:SharedArchiveFile={folder}/classes-{mark}.jsa"'
        f" -Xlog:cds=off -Xlog:cds+dynamic=off {theirs}"
    ).strip()


def compiled_home(spark: Path, cache: Path) -> Path | None:
    """A home of Spark without `pyspark.zip`; None where it cannot be made, or is of no use.

    Spark puts that before all else on the path of its Python processes. A zip holds no bytecode, so
    each of them compiles PySpark anew: about a second of a core. A folder that links to all of
    Spark's home but that makes them take the installed package, which is the same.
    """
    if not (spark / "python" / "lib" / "pyspark.zip").is_file():
        return None
    names = sorted({found.name for found in spark.iterdir()} - {"python", "__pycache__"})
    home = cache / f"home-{sha256(repr((spark, names)).encode()).hexdigest()[:12]}"
    with suppress(OSError):  # Without it Python processes start as slowly as they always did.
        if not home.is_dir():
            # Under another name first: other processes may do the same at the same time.
            cache.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=cache))
            try:
                for name in names:
                    (part / name).symlink_to(spark / name)
                part.rename(home)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return home if home.is_dir() else None


def installed_spark() -> Path:
    """Where pip has put it."""
    spec = importlib.util.find_spec("pyspark")
    return Path(spec.origin).parent if spec and spec.origin else Path()


def _existing() -> "SparkSession | None":
    """The session of this process that still runs."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    # A Connect session has no context of its own, and says `is_stopped` itself.
    context = getattr(there, "_sc", None)
    is_stopped = getattr(there, "is_stopped", False) or (context and context._jsc is None)
    return None if is_stopped else there


def _warn_of_conflicts(there: "SparkSession", master: str, config: dict[str, str]) -> None:
    if hasattr(there, "_sc") and master != LOCAL:
        config = {**config, "spark.master": master}
    # We add options for Java to the caller's.
    has = {key: there.conf.get(key, None) or "" for key in config if key != _JAVA_OPTIONS}
    differing = [key for key in has if has[key] != config[key]]
    if differing:
        warnings.warn(
            "this process has a Spark session already, which stays as it is, with other values of "
            f"{', '.join(differing)}. Stop it first (spark.stop()) to have another.",
            stacklevel=4,
        )
