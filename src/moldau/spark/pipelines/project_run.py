"""Owns the process in which a project runs: a Spark with a lasting catalog and a Connect server of
its own, and Spark's own program for pipelines, which talks to it.

    python -m moldau.spark.pipelines.project_run MASTER SPEC run|dry-run […]
"""

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from moldau.client.errors import ClientError
from moldau.model.errors import MoldauError
from moldau.spark import session
from moldau.spark.pipelines.project_template import OWN_FOLDER

_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"


def settings(own: Path, port: int) -> dict[str, str]:
    """What the Spark of a project needs: a catalog that lasts, and a door for Spark's program."""
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": (own / "warehouse").as_uri(),
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={own / 'metastore'};create=true"
        ),
        # Derby writes a log wherever it is started, unless told where.
        "spark.driver.extraJavaOptions": f'"-Dderby.system.home={own}"',
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        # As Spark sets them for a server that it starts by itself.
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    }


def run(master: str, spec: Path, arguments: list[str]) -> int:
    """Run Spark's program on a Spark of our own, or on the one that is named."""
    if master.startswith("sc://"):
        return _program(master, spec, arguments)
    own = spec.parent / OWN_FOLDER
    own.mkdir(exist_ok=True)
    with _alone(own / "lock"):
        # Who else is on this machine may find the port, and is not let in.
        os.environ[_TOKEN] = secrets.token_hex(16)
        port = _free_port()
        spark = session(master, f"moldau {spec.parent.name}", settings(own, port))
        # What fails is told by the program; closing its session would be logged as an error, too.
        spark.sparkContext.setLogLevel("OFF")
        try:
            # By this name: with any other Spark asks for TLS as soon as there is a token.
            return _program(f"sc://localhost:{port}", spec, arguments)
        finally:
            spark.stop()


def _program(url: str, spec: Path, arguments: list[str]) -> int:
    """Spark's own `spark-pipelines`, without the Java that its script would start."""
    hidden = {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"}
    environ = {key: value for key, value in os.environ.items() if key not in hidden}
    child = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "pyspark.pipelines.cli"),
            *(arguments[0], "--spec", str(spec)),
            *arguments[1:],
        ],
        env={**environ, "SPARK_REMOTE": url},
        cwd=spec.parent,
    )
    try:
        return child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One run of a project at a time: its catalog takes no more."""
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClientError(
                f"the project in {lock.parent.parent} is running already",
                hint="wait for it to end, or stop it",
            ) from None
        yield


def _end_children() -> None:
    """Java ends with the process that started it, unless that is ended while Java starts."""
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in path.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)


def _asked_to_end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    signal.signal(signal.SIGTERM, _asked_to_end)
    master, spec, *arguments = sys.argv[1:]
    try:
        return run(master, Path(spec), arguments)
    except MoldauError as error:
        print(f"error: {error}", flush=True)
        if error.hint:
            print(f"hint:  {error.hint}", flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        _end_children()


if __name__ == "__main__":
    sys.exit(main())
