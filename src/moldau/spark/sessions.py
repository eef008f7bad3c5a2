"""Creates Spark sessions: finds Java, sets the workers' Python and the settings for the master.

`defaults` lists the settings, which `config` overrides. Spark has one session per process, so an
existing session is returned unchanged.
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
from moldau.spark.hints import shows_hints
from moldau.spark.java import Java, cache_folder, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"

_LOCAL_MASTER = re.compile(r"local(?:\[(\*|[1-9]\d*)(?:\s*,\s*[1-9]\d*)?\])?")
_OTHER_MASTER = re.compile(r"(spark|k8s|sc)://\S+|yarn")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@shows_hints()
def session(
    master: str = LOCAL, app_name: str = "moldau", config: Mapping[str, str] | None = None
) -> "SparkSession":
    """The Spark session of this process; created if there is none.

    `master` is `local[N]`, `spark://…`, `k8s://…`, `yarn` or the address of a Connect server,
    `sc://…`. `config` overrides the defaults. Under `spark-submit`, its master is used.
    """
    config = dict(config or {})
    check_master(master)
    check_installed()
    existing = _existing()
    if existing is not None:
        _warn_of_conflicts(existing, master, config)
        return existing
    is_connect = master.startswith("sc://")
    # spark-submit has started Java already, with its own master and Python.
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
            # Only for the start of Java: child processes such as cluster workers may need another.
            del os.environ["SPARK_LOCAL_IP"]


def check_installed() -> None:
    """Raises ClientError if Spark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        hint = "pip install 'moldau[spark]'"
        raise ClientError("Spark is not installed in this Python", hint=hint)


def check_master(master: str) -> None:
    """Rejects a master for which Spark itself would only print a Java stack trace."""
    if not _LOCAL_MASTER.fullmatch(master) and not _OTHER_MASTER.fullmatch(master):
        raise InvalidArgumentError(
            f"{master!r} is not a valid Spark master",
            hint="use local[*], local[4], spark://HOST:7077, k8s://https://HOST:443, yarn or "
            "sc://HOST",
        )


def is_local(master: str) -> bool:
    return master.startswith("local")


def is_this_machine(master: str) -> bool:
    """Whether workers of this master run the Python installed here."""
    here = {"127.0.0.1", "::1", "localhost", socket.gethostname().lower()}
    host = urlsplit(master.partition(",")[0]).hostname if master.startswith("spark:") else None
    return is_local(master) or host in here


def cores_of(master: str, config: Mapping[str, str]) -> int | None:
    """How many tasks run at once; None if the settings do not say."""
    found = _LOCAL_MASTER.fullmatch(master)
    if found is not None:
        if found[1] == "*":
            return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        return int(found[1] or 1)
    executors = config.get("spark.executor.instances", ""), config.get("spark.executor.cores", "1")
    cores = (config["spark.cores.max"],) if "spark.cores.max" in config else executors
    return math.prod(map(int, cores)) if all(each.isdigit() for each in cores) else None


def defaults(master: str, config: Mapping[str, str]) -> dict[str, str]:
    """Default settings for a master; `config` overrides them."""
    settings = {
        # Without it, record timestamps would be shown in the machine's time zone.
        "spark.sql.session.timeZone": "UTC",
        # Without it, Spark fails every read of a source that accepts filters.
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if master.startswith("sc://"):
        return settings
    cores = cores_of(master, config)
    if cores is not None:
        # With Spark's default of 200, a tiny streaming aggregate took 18 s on two cores.
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
    """Sets the environment variables for Java and Python; returns the settings to use."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    if is_local(master) and "SPARK_HOME" not in os.environ and python == sys.executable:
        home = compiled_home(installed_spark(), cache_folder())
        if home is not None:
            os.environ["SPARK_HOME"] = str(home)
    if is_this_machine(master):
        # Otherwise the workers would use the first Python in PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    options = java_options(java, config)
    return {**config, _JAVA_OPTIONS: options} if options else config


def java_options(java: Java, config: Mapping[str, str]) -> str:
    """The driver's Java options: ours, then the caller's, which therefore override ours.

    Ours make Java write an archive of the classes it loaded (class data sharing) and start from it
    the next time. They are left out before Java 19, if the caller's options configure sharing, or
    if a folder is in the class path, for which Java supports no archive.
    """
    theirs = config.get(_JAVA_OPTIONS, "")
    given = (theirs, *map(os.environ.get, ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")))
    configures_sharing = any("share" in each.lower() for each in given if each)
    if java.major < 19 or configures_sharing or os.environ.get("SPARK_CONF_DIR"):
        return theirs
    fits = (java.build, installed_spark(), config.get("spark.driver.extraClassPath"))
    mark = sha256(repr(fits).encode()).hexdigest()[:12]
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return theirs  # Without an archive Spark just starts more slowly.
    # Otherwise Java reports problems with an archive on standard output; it works without one.
    return (
        f'-XX:+AutoCreateSharedArchive "-XX:SharedArchiveFile={folder}/classes-{mark}.jsa"'
        f" -Xlog:cds=off -Xlog:cds+dynamic=off {theirs}"
    ).strip()


def compiled_home(spark: Path, cache: Path) -> Path | None:
    """A SPARK_HOME without `pyspark.zip`; None if it cannot be created or is not needed.

    Spark puts the zip first on the path of its Python processes. A zip holds no bytecode, so each
    process compiles PySpark again, which takes about a second of CPU time. A folder of links to
    everything but the zip makes them use the installed package, which is the same code.
    """
    if not (spark / "python" / "lib" / "pyspark.zip").is_file():
        return None
    names = sorted({found.name for found in spark.iterdir()} - {"python", "__pycache__"})
    home = cache / f"home-{sha256(repr((spark, names)).encode()).hexdigest()[:12]}"
    with suppress(OSError):  # Without it, Python processes just start more slowly.
        if not home.is_dir():
            # Under a temporary name first: other processes may do the same at the same time.
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
    """Where pip has installed it."""
    spec = importlib.util.find_spec("pyspark")
    return Path(spec.origin).parent if spec and spec.origin else Path()


def _existing() -> "SparkSession | None":
    """The running session of this process."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    # A Connect session has no context, but an attribute `is_stopped`.
    context = getattr(found, "_sc", None)
    is_stopped = getattr(found, "is_stopped", False) or (context and context._jsc is None)
    return None if is_stopped else found


def _warn_of_conflicts(existing: "SparkSession", master: str, config: dict[str, str]) -> None:
    if hasattr(existing, "_sc") and master != LOCAL:
        config = {**config, "spark.master": master}
    # The Java options always differ: ours were added to the caller's.
    has = {key: existing.conf.get(key, None) or "" for key in config if key != _JAVA_OPTIONS}
    differing = [key for key in has if has[key] != config[key]]
    if differing:
        warnings.warn(
            "this process already has a Spark session, which is used as it is, with other values "
            f"of {', '.join(differing)}. To create another, stop it first: spark.stop()",
            stacklevel=4,
        )
