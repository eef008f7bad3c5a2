"""`moldau doctor`: checks whether a broker can start and clients can reach it, and the cluster.

Checks change nothing (a directory is tested with a temporary file), are bounded in time, and say
what to do.
"""

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moldau import __version__
from moldau.cli.broker import load
from moldau.cli.check_result import CheckResult, CheckStatus
from moldau.cli.check_result import ok as _ok
from moldau.cli.check_result import trouble as _trouble
from moldau.cli.check_result import warning as _warning
from moldau.cli.click_groups import command
from moldau.cli.connection.current import current_properties, use_local_tokens
from moldau.cli.connection.options import connection_options
from moldau.cli.doctor_certificates import check_certificates
from moldau.cli.errors import ExitCode
from moldau.cli.options import (
    Brokers,
    Properties,
    config_option,
    document_output_option,
    open_admin,
    set_option,
)
from moldau.cli.output import color_wanted, emit_rows, format_bytes, with_options

if TYPE_CHECKING:
    from moldau.model.topology import Endpoint
    from moldau.server.config.schema import ServerConfig

_CONNECT_SECONDS_MAX = 3.0
_OTHER_FILES = 512
"""File descriptors that a broker needs in addition to those of its connections."""

_PACKAGES = (
    *("confluent-kafka", "uvloop", "crc32c", "cramjam", "msgspec", "click", "rich", "PyYAML"),
    "cryptography",
)
_ADVERTISED_HINT = "clients connect to this address; set kafka.advertised"


_COLORS = {CheckStatus.OK: "green", CheckStatus.WARNING: "yellow", CheckStatus.TROUBLE: "red"}


@command(
    "doctor",
    examples=(
        "moldau doctor",
        "moldau doctor --config broker.yaml -o json",
        "moldau doctor -b broker.example:9092      # can clients here reach that cluster?",
    ),
)
@config_option
@set_option("A setting of the broker")
@click.option("-b", "--brokers", type=Brokers(), metavar="HOST:PORT[,…]",
              help="Only check whether a client here can reach these brokers.")  # fmt: skip
@document_output_option
@connection_options
def doctor(config_file: str | None, settings: Properties, brokers: str | None, output: str) -> int:
    """Check whether a broker can start here and clients can reach it.

    If the broker runs, its cluster is checked as well. Exits with 1 if there is trouble.
    """
    if brokers is not None:
        found = [*check_versions(), *check_brokers(brokers)]
    else:
        found = list(check_all(load({}, settings, config_file).config))
    rows = [{**result._asdict(), "verdict": str(result.verdict)} for result in found]
    if output != "table":
        emit_rows(rows, output, name="check")
    else:
        for result in found:
            _print(result)
    has_trouble = any(result.verdict is CheckStatus.TROUBLE for result in found)
    return ExitCode.FAILED if has_trouble else ExitCode.OK


def _print(result: CheckResult) -> None:
    color = color_wanted()
    mark = click.style(f"{result.verdict:<8}", fg=_COLORS[result.verdict], bold=True)
    click.echo(f"{mark} {result.check}: {result.detail}", color=color)
    if result.hint:
        click.echo(f"{'':<8} hint: {with_options(result.hint)}")


def check_all(config: "ServerConfig") -> Iterator[CheckResult]:
    """All checks of a broker's configuration, one after another."""
    from moldau.server.config.listeners import listeners_for, listeners_of
    from moldau.server.config.security_schema import ListenerProtocol

    yield from check_versions()
    kafka = listeners_for(config, ListenerProtocol.KAFKA)[0]
    if kafka.uses_tls or kafka.sasl:
        # It serves no unknown client: its lock says whether it runs.
        pid = lock_holder(config.data_dir)
        running = f"process {pid}" if pid else None
    else:
        running = broker_at(kafka.address)
    yield check_port(kafka.setting, kafka.address, running)
    if running is None:
        for listener in listeners_of(config):
            if listener != kafka:
                yield check_port(listener.setting, listener.address, None)
    yield from check_data_dir(config.data_dir, running is not None)
    yield check_disk(config.data_dir, config.log.disk_reserve_bytes)
    yield check_advertised(kafka.advertised or kafka.address, running is not None)
    yield from check_certificates(config)
    yield from check_listeners(config)
    yield check_open_files(config.kafka.connections_max)
    if running is not None:
        addresses = [
            str(_reachable(address))
            for listener in listeners_of(config)
            for address in (listener.address, listener.advertised or listener.address)
        ]
        use_local_tokens(dict.fromkeys(addresses, Path(config.data_dir)))
        yield from check_cluster(listeners_for(config, ListenerProtocol.HTTP)[0].address)


def check_listeners(config: "ServerConfig") -> Iterator[CheckResult]:
    """What the broker would warn of when it starts."""
    from moldau.server.config.listener_rules import doubts

    for danger in doubts(config):
        yield _warning("security", danger)


def check_versions() -> Iterator[CheckResult]:
    """Installed versions, for bug reports."""
    from importlib.metadata import PackageNotFoundError, version

    import confluent_kafka

    yield _ok(
        "versions",
        f"moldau {__version__}, Python {platform.python_version()} on {platform.system()} "
        f"{platform.machine()}, librdkafka {confluent_kafka.libversion()[0]}",
    )
    found, missing = [], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    yield _ok("libraries", ", ".join(found))
    if missing:
        detail = f"not installed: {', '.join(missing)}"
        yield _warning("libraries", detail, "install them: pip install moldau")


def check_brokers(brokers: str) -> Iterator[CheckResult]:
    """Can a client reach these brokers, and every address that they advertise?"""
    from moldau.client.errors import ClientError

    try:
        cluster, nodes = open_admin(brokers, tuple(current_properties().items())).nodes()
    except ClientError as error:
        yield _trouble(f"brokers {brokers}", str(error), error.hint)
        return
    ids = ", ".join(str(node.id) for node in nodes)
    yield _ok(f"brokers {brokers}", f"cluster {cluster}, brokers {ids}")
    for node in nodes:
        name = f"broker {node.id} at {node.host}:{node.port}"
        if reason := _connect_error(node.host, node.port):
            yield _trouble(name, f"cannot be reached ({reason})", _ADVERTISED_HINT)
        else:
            yield _ok(name, "reachable")


def broker_at(address: "Endpoint") -> str | None:
    """The cluster and id of the Kafka broker at an address, or None."""
    from moldau.client.errors import ClientError
    from moldau.client.kafka.admin import Admin

    reachable = _reachable(address)
    if _connect_error(*reachable):
        return None
    try:
        cluster, nodes = Admin(str(reachable), current_properties()).nodes()
    except ClientError:
        return None
    return f"cluster {cluster}, broker {', '.join(str(node.id) for node in nodes)}"


def _reachable(address: "Endpoint") -> "Endpoint":
    """An address to connect to, also for one bound to all interfaces."""
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return address._replace(host=loopback.get(address.host, address.host))


def check_port(key: str, address: "Endpoint", running: str | None) -> CheckResult:
    """Can a broker bind this address now?"""
    name = f"port {address}"
    if running is not None:
        return _warning(
            name,
            f"a broker is already running ({running})",
            "start a second one: moldau dev --port 0 --data-dir ./.moldau-2",
        )
    try:
        family, kind, _, _, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        detail = f"{address.host} is not an address of this machine ({error.strerror})"
        return _trouble(name, detail, f"set {key}")
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(target)
        except OSError as error:
            return _trouble(
                name,
                f"cannot bind {key} ({(error.strerror or str(error)).lower()})",
                f"find the program: lsof -i :{address.port} · use another port: "
                f"--set {key}=HOST:PORT, or moldau dev --port 9192",
            )
    return _ok(name, f"free ({key})")


def check_data_dir(data_dir: str, running: bool) -> Iterator[CheckResult]:
    """Does the directory exist or can it be created, is it writable, and not in use?"""
    name = f"data directory {data_dir}"
    other = "use another directory: --data-dir DIR"
    if not os.path.exists(data_dir):
        parent = _existing_parent(data_dir)
        if not os.path.isdir(parent):
            yield _trouble(name, f"cannot be created: {parent} is not a directory", other)
        elif not os.access(parent, os.W_OK | os.X_OK):
            yield _trouble(name, f"cannot be created: {parent} is not writable", other)
        else:
            yield _ok(name, "will be created")
        return
    if not os.path.isdir(data_dir):
        yield _trouble(name, "is a file, not a directory", other)
        return
    try:
        with tempfile.TemporaryFile(dir=data_dir) as stream:
            stream.write(b"moldau")
            stream.flush()
    except OSError as error:
        yield _trouble(
            name,
            f"is not writable ({(error.strerror or str(error)).lower()})",
            f"change its permissions · {other}",
        )
        return
    if pid := lock_holder(data_dir):
        detail = f"in use by process {pid}"
        yield (
            _warning(name, detail)
            if running
            else _trouble(name, detail, f"stop that broker · {other}")
        )
        return
    if os.stat(data_dir).st_mode & 0o077:
        yield _warning(name, "other users can read it", f"chmod 700 {data_dir}")
        return
    yield _ok(name, "writable, not in use")


def lock_holder(data_dir: str) -> str:
    """The pid of the broker that has locked the directory, or an empty text."""
    import fcntl

    from moldau.model.layout import LOCK_FILE

    path = os.path.join(data_dir, LOCK_FILE)
    try:
        with open(path, encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return stream.read(100).strip() or "unknown"
    except OSError:
        return ""
    return ""


def _existing_parent(path: str) -> str:
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def check_disk(data_dir: str, reserve_bytes: int) -> CheckResult:
    """Would the broker reject writes because the disk is full?"""
    path = _existing_parent(data_dir)
    usage = shutil.disk_usage(path)
    detail = f"{format_bytes(usage.free)} of {format_bytes(usage.total)} free"
    inodes = os.statvfs(path)
    if usage.free <= reserve_bytes:
        return _trouble(
            "disk",
            f"{detail}, less than the reserve of {format_bytes(reserve_bytes)}: the broker rejects "
            "writes",
            "free disk space, shorten log.retention_ms, or lower log.disk_reserve_bytes",
        )
    if inodes.f_files and inodes.f_favail < 1000:
        return _trouble(
            "disk", f"only {inodes.f_favail} inodes free", "delete files: every file needs an inode"
        )
    if usage.free < 4 * reserve_bytes:
        return _warning("disk", f"{detail}: nearly full")
    return _ok("disk", detail)


def check_advertised(advertised: "Endpoint", running: bool) -> CheckResult:
    """Can the advertised address be resolved, and reached if the broker runs?"""
    name = f"advertised address {advertised}"
    try:
        found = socket.getaddrinfo(*advertised, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return _trouble(name, f"unknown host {advertised.host}", _ADVERTISED_HINT)
    resolved = ", ".join(sorted({str(entry[4][0]) for entry in found}))
    if not running:
        return _ok(name, f"resolves to {resolved}")
    if reason := _connect_error(*advertised):
        detail = f"resolves to {resolved}, but cannot be reached ({reason})"
        return _trouble(name, detail, _ADVERTISED_HINT)
    return _ok(name, f"reachable ({resolved})")


def _connect_error(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS_MAX).close()
    except TimeoutError:
        return f"timed out after {_CONNECT_SECONDS_MAX:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def check_cluster(http: "Endpoint") -> Iterator[CheckResult]:
    """Is the cluster of the running broker healthy, and has every topic several replicas?"""
    from moldau.cli.cluster.health import broker_problems
    from moldau.cli.cluster.problems import problems
    from moldau.cli.cluster.topology import connect, headline, single_copies
    from moldau.client.errors import (
        ClientError,
        RejectedError,
        TimedOutError,
        UnreachableError,
    )

    try:
        _, topology = connect(str(_reachable(http)))
    except RejectedError as error:
        yield _warning("cluster", f"the broker refuses this user ({error})", error.hint)
        return
    except ClientError as error:
        detail = f"the broker does not respond over HTTP ({error})"
        has_no_response = isinstance(error, UnreachableError | TimedOutError)
        hint = "was it started with another http.addr?" if has_no_response else error.hint
        yield _warning("cluster", detail, hint)
        return
    if found := problems(topology) + broker_problems(topology):
        yield _trouble("cluster", "; ".join(map(str, found)), "details: moldau broker status")
    else:
        yield _ok("cluster", headline(topology))
    if single := single_copies(topology):
        detail = f"{single.text}: a disk failure loses its messages"
        yield _warning("copies", detail, f"add replicas, topic by topic: {single.command}")


def check_open_files(connections_max: int) -> CheckResult:
    """Does the limit of open files allow the configured connections?"""
    if sys.platform == "win32":
        return _ok("open files", "not limited here")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections_max + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        return _warning(
            "open files",
            f"the limit of {soft} is too low for kafka.connections_max = {connections_max}",
            f"raise it: ulimit -n {needed} · or lower kafka.connections_max",
        )
    shown = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return _ok("open files", f"limit {shown} (hard {hard})")
