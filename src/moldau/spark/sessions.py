"""Owns how a Spark session is made: Java, the workers' Python, and settings that fit the master.

What is set unless `config` or the caller's own Spark says otherwise stands in `defaults`. A session
that is there already is given back as it is, since Spark has one per process.
"""

import importlib.util
import os
import re
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from typing import TYPE_CHECKING

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.spark import spark_home
from moldau.spark.hints import tells_hints
from moldau.spark.java import Java, cache_folder, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"

_LOCAL_MASTER = re.compile(r"local(?:\[(\*|[1-9]\d*)(?:\s*,\s*[1-9]\d*)?\])?")
_ARCHIVE_JAVA_MIN = 19
_JAVA_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
_SECRET = re.compile("secret|password|token|credential|key|auth", re.IGNORECASE)
_CONNECT_NEEDS = ("grpc", "grpc_status", "google.rpc", "pandas", "pyarrow", "zstandard")


class ExtraMissingError(ClientError):
    """A package that Spark needs is not installed."""


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
    if master.startswith("sc://"):
        return _connect(master, app_name, config)
    return _start(master, app_name, config)


def check_installed() -> None:
    """Raises ExtraMissingError where there is no Spark."""
    if not _is_installed("pyspark"):
        raise ExtraMissingError(
            "Spark is not installed in this Python", hint="pip install 'moldau[spark]'"
        )


def check_connect() -> None:
    """Raises ExtraMissingError where Spark cannot talk to a Connect server."""
    missing = [name for name in _CONNECT_NEEDS if not _is_installed(name)]
    if missing:
        raise ExtraMissingError(
            f"a Connect server is asked by packages that are not installed: {', '.join(missing)}",
            hint="pip install 'pyspark[connect]'",
        )


def check_master(master: str) -> None:
    """Refuse what Spark would answer with a trace of Java."""
    if master.startswith("local"):
        if _LOCAL_MASTER.fullmatch(master):
            return
    elif re.match(r"(spark|k8s|sc)://\S+$", master) or master == "yarn":
        return
    raise InvalidArgumentError(
        f"no master of Spark: {master!r}",
        hint="local[*], local[4], spark://HOST:7077, k8s://https://HOST:443, yarn or sc://HOST",
    )


def is_local(master: str) -> bool:
    return master.startswith("local")


def is_this_machine(master: str) -> bool:
    """A master whose workers run what is installed here: local ones, and standalone ones here."""
    if is_local(master):
        return True
    found = re.match(r"spark://(?:\[([^\]]+)\]|([^:/,]+))", master)
    return found is not None and (found[1] or found[2]) in {
        "127.0.0.1",
        "::1",
        "localhost",
        socket.gethostname(),
    }


def cores_of(master: str, config: Mapping[str, str]) -> int | None:
    """How many tasks run at once, as far as the settings say so."""
    found = _LOCAL_MASTER.fullmatch(master)
    if found is not None:
        if found[1] == "*":
            return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        return int(found[1] or 1)
    most = config.get("spark.cores.max")
    if most is None and "spark.executor.instances" in config:
        each = config.get("spark.executor.cores", "1")
        count = config["spark.executor.instances"]
        return int(each) * int(count) if each.isdigit() and count.isdigit() else None
    return int(most) if most is not None and most.isdigit() else None


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


def java_options(config: Mapping[str, str], more: str) -> str:
    """The driver's Java options: the caller's come last, and so go before ours."""
    return f"{more} {config.get('spark.driver.extraJavaOptions', '')}".strip()


def class_archive_options(java: Java, config: Mapping[str, str]) -> str:
    """Has Java keep an archive of the classes it loaded, and start from it the next time.

    Nothing where Java cannot (before 19), where its options say something about it already, or
    where a folder is in its class path: Java takes no archive then.
    """
    told = [config.get("spark.driver.extraJavaOptions"), *map(os.environ.get, _JAVA_VARIABLES)]
    if (
        java.major < _ARCHIVE_JAVA_MIN
        or any("share" in each.lower() for each in told if each)
        or os.environ.get("SPARK_CONF_DIR")
    ):
        return ""
    fits = (java.build, spark_home.installed_spark(), config.get("spark.driver.extraClassPath"))
    mark = sha256(repr(fits).encode()).hexdigest()[:12]
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return ""  # Without one Spark starts as slowly as it always did.
    # What is wrong with an archive is told on standard output otherwise; Java goes on without it.
    return (
        f'-XX:+AutoCreateSharedArchive "-XX:SharedArchiveFile={folder}/classes-{mark}.jsa"'
        " -Xlog:cds=off -Xlog:cds+dynamic=off"
    )


def _start(master: str, app_name: str, config: dict[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    # spark-submit has started Java, and knows master and Python.
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(app_name)
    if not is_submitted:
        java = find_java()
        os.environ["JAVA_HOME"] = str(java.home)
        if is_local(master):
            spark_home.prefer_compiled()
        if is_this_machine(master):
            # Else the workers would take whichever Python comes first in PATH.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        options = java_options(config, class_archive_options(java, config))
        if options:
            config = {**config, "spark.driver.extraJavaOptions": options}
    if not is_submitted or not _submitted_master():
        builder = builder.master(master)
    for key, value in {**defaults(master, config), **config}.items():
        builder = builder.config(key, value)
    with _loopback_only() if is_local(master) else nullcontext():
        return builder.getOrCreate()


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Java takes the address for what it opens from here; for its start only, since children of
    this process, such as workers of a cluster, may need another."""
    if "SPARK_LOCAL_IP" in os.environ:
        yield
        return
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        yield
    finally:
        del os.environ["SPARK_LOCAL_IP"]


def _submitted_master() -> str:
    """The master that spark-submit was given."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return SparkConf().get("spark.master", "") or ""


def _connect(url: str, app_name: str, config: Mapping[str, str]) -> "SparkSession":
    check_connect()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(url).appName(app_name)
    for key, value in {**defaults(url, config), **config}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False  # A parent of it is missing.


def _existing() -> "SparkSession | None":
    """The session of this process that still runs."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if there is not None and (getattr(there, "is_stopped", False) or not _is_running(there)):
        return None
    return there


def _is_running(there: "SparkSession") -> bool:
    # A Connect session has no context of its own, and says `is_stopped` itself.
    context = getattr(there, "_sc", None)
    return context is None or context._jsc is not None


def _warn_of_conflicts(there: "SparkSession", master: str, config: Mapping[str, str]) -> None:
    asked = dict(config)
    context = getattr(there, "_sc", None)
    if context is not None and master != LOCAL:
        asked["spark.master"] = master
    differing = []
    for key, value in asked.items():
        has = context.getConf().get(key) if context is not None else None
        has = there.conf.get(key, None) if has is None else has
        if has != value and not (key == "spark.driver.extraJavaOptions" and value in (has or "")):
            told = "differs" if _SECRET.search(key) else f"is {has}, not {value}"
            differing.append(f"{key} {told}")
    if differing:
        warnings.warn(
            f"this process has a Spark session already, which stays as it is: "
            f"{'; '.join(differing)}. Stop it first (spark.stop()) to have another.",
            stacklevel=4,
        )
