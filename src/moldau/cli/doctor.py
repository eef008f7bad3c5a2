"""Owns `moldau doctor`: what keeps a broker from starting, or clients from reaching it, and how
the cluster of a broker that runs is.

Every check looks and changes nothing (a directory is tried with a file that is removed at once),
is bounded in time, and says what to do.
"""

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import click

from moldau import __version__
from moldau.cli.broker import load
from moldau.cli.click_groups import command
from moldau.cli.errors import ExitCode
from moldau.cli.options import KeyValue, Properties
from moldau.cli.output import color_wanted, emit_json, emit_yaml, format_bytes

if TYPE_CHECKING:
    from moldau.server.config import Address, ServerConfig

_CONNECT_SECONDS_MAX = 3.0
_SPARE_FILES = 512
"""File descriptors that a broker needs beside those of its connections."""

_PACKAGES = ("confluent-kafka", "uvloop", "crc32c", "cramjam", "msgspec", "click", "rich", "PyYAML")


class CheckStatus(StrEnum):
    """What a check found."""

    OK = "ok"
    WARNING = "warning"
    TROUBLE = "trouble"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line of the report."""

    check: str
    verdict: CheckStatus
    detail: str
    hint: str = ""


@command(
    "doctor",
    examples=(
        "moldau doctor",
        "moldau doctor --config broker.yaml",
        "moldau doctor --set data_dir=/var/lib/moldau -o json",
    ),
)
@click.option("--config", "config_file", type=click.Path(dir_okay=False), metavar="FILE",
              help="The broker's configuration; also MOLDAU_CONFIG.")  # fmt: skip
@click.option("--set", "settings", type=KeyValue(), multiple=True, metavar="KEY=VALUE",
              help="A setting of the broker; may be repeated.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(("table", "json", "yaml")), default="table",
              show_default=True)  # fmt: skip
def doctor(config_file: str | None, settings: Properties, output: str) -> int:
    """Look for what keeps a broker from starting, or clients from reaching it.

    If the broker runs, its cluster is looked at as well.

    Exits with 1 if there is trouble.
    """
    resolved = load({}, settings, config_file)
    findings = list(examine(resolved.config))
    rows = [
        {"check": f.check, "verdict": str(f.verdict), "detail": f.detail, "hint": f.hint}
        for f in findings
    ]
    if output == "json":
        emit_json(rows)
    elif output == "yaml":
        emit_yaml(rows)
    else:
        for finding in findings:
            _print(finding)
    trouble = any(finding.verdict is CheckStatus.TROUBLE for finding in findings)
    return ExitCode.FAILED if trouble else ExitCode.OK


_COLORS = {CheckStatus.OK: "green", CheckStatus.WARNING: "yellow", CheckStatus.TROUBLE: "red"}


def _print(finding: CheckResult) -> None:
    color = color_wanted()
    mark = click.style(f"{finding.verdict:<8}", fg=_COLORS[finding.verdict], bold=True)
    click.echo(f"{mark} {finding.check}: {finding.detail}", color=color)
    if finding.hint:
        click.echo(f"{'':<8} hint: {finding.hint}")


def examine(config: "ServerConfig") -> Iterator[CheckResult]:
    """All checks, one after another."""
    yield from check_versions()
    running = broker_at(config.kafka.addr)
    yield check_port(config.kafka.addr, running)
    yield from check_data_dir(config.data_dir, running is not None)
    yield check_disk(config.data_dir, config.log.disk_reserve_bytes)
    yield check_advertised(config, running is not None)
    yield check_open_files(config.kafka.connections_max)
    if running is not None:
        yield from check_cluster(config.http.addr)


def check_versions() -> Iterator[CheckResult]:
    """What runs here, for bug reports."""
    from importlib.metadata import PackageNotFoundError, version

    import confluent_kafka

    python = platform.python_version()
    yield CheckResult(
        check="versions",
        verdict=CheckStatus.OK,
        detail=f"moldau {__version__}, Python {python} on {platform.system()} "
        f"{platform.machine()}, librdkafka {confluent_kafka.libversion()[0]}",
    )
    found, missing = [], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    yield CheckResult(check="libraries", verdict=CheckStatus.OK, detail=", ".join(found))
    if missing:
        yield CheckResult(
            check="libraries",
            verdict=CheckStatus.WARNING,
            detail=f"not installed: {', '.join(missing)}",
            hint="install them: pip install moldau",
        )


def broker_at(address: "Address") -> str | None:
    """What answers as a Kafka broker at an address, or None."""
    try:
        socket.create_connection(_reachable(address), timeout=_CONNECT_SECONDS_MAX).close()
    except OSError:
        return None
    from moldau.client.errors import ClientError
    from moldau.client.kafka.admin import Admin

    try:
        cluster, nodes = Admin(str(_reachable(address))).nodes()
    except ClientError:
        return None
    return f"cluster {cluster}, broker {', '.join(str(node.id) for node in nodes)}"


def _reachable(address: "Address") -> "Address":
    """An address to connect to, for one that may be bound on all interfaces."""
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return address._replace(host=loopback.get(address.host, address.host))


def check_port(address: "Address", running: str | None) -> CheckResult:
    """Could a broker bind its address now?"""
    name = f"port {address}"
    if running is not None:
        return CheckResult(
            check=name,
            verdict=CheckStatus.WARNING,
            detail=f"a broker runs here already ({running})",
            hint="for a second one: moldau dev --port 0 --data-dir ./.moldau-2",
        )
    try:
        family, kind, _, _, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        return CheckResult(
            check=name,
            verdict=CheckStatus.TROUBLE,
            detail=f"{address.host} is no address of this machine ({error.strerror})",
            hint="set kafka.addr",
        )
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            return CheckResult(
                check=name,
                verdict=CheckStatus.TROUBLE,
                detail=f"cannot be bound ({(error.strerror or str(error)).lower()})",
                hint="another program has it; take another port: moldau dev --port 9192",
            )
    return CheckResult(check=name, verdict=CheckStatus.OK, detail="free")


def check_data_dir(data_dir: str, running: bool) -> Iterator[CheckResult]:
    """Is the directory there or could it be made, may we write, and does nobody else?"""
    name = f"data directory {data_dir}"
    if not os.path.exists(data_dir):
        parent = _existing_parent(data_dir)
        able = os.access(parent, os.W_OK | os.X_OK)
        yield CheckResult(
            check=name,
            verdict=CheckStatus.OK if able else CheckStatus.TROUBLE,
            detail="will be created" if able else f"cannot be created: {parent} is not writable",
            hint="" if able else "choose another: --data-dir DIR",
        )
        return
    if not os.path.isdir(data_dir):
        yield CheckResult(
            check=name, verdict=CheckStatus.TROUBLE, detail="is a file and no directory"
        )
        return
    try:
        with tempfile.TemporaryFile(dir=data_dir) as stream:
            stream.write(b"moldau")
            stream.flush()
    except OSError as error:
        yield CheckResult(
            check=name,
            verdict=CheckStatus.TROUBLE,
            detail=f"cannot be written ({(error.strerror or str(error)).lower()})",
            hint="give this user the right to, or choose another: --data-dir DIR",
        )
        return
    holder = lock_holder(data_dir)
    if holder:
        yield CheckResult(
            check=name,
            verdict=CheckStatus.WARNING if running else CheckStatus.TROUBLE,
            detail=f"in use by process {holder}",
            hint="" if running else "stop that broker, or choose another: --data-dir DIR",
        )
        return
    yield CheckResult(check=name, verdict=CheckStatus.OK, detail="writable, and used by no broker")


def lock_holder(data_dir: str) -> str:
    """The process that holds the directory's lock, or nothing."""
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
    """Would produce be refused for want of space?"""
    place = _existing_parent(data_dir)
    usage = shutil.disk_usage(place)
    detail = f"{format_bytes(usage.free)} of {format_bytes(usage.total)} free"
    inodes = os.statvfs(place)
    if usage.free <= reserve_bytes:
        return CheckResult(
            check="disk",
            verdict=CheckStatus.TROUBLE,
            detail=f"{detail}: below the reserve of {format_bytes(reserve_bytes)}, so produce "
            "is refused",
            hint="free some space, shorten log.retention_ms, or lower log.disk_reserve_bytes",
        )
    if inodes.f_files and inodes.f_favail < 1000:
        return CheckResult(
            check="disk",
            verdict=CheckStatus.TROUBLE,
            detail=f"only {inodes.f_favail} more files can be created",
            hint="remove some files: the file system has no room for names",
        )
    if usage.free < 4 * reserve_bytes:
        return CheckResult(
            check="disk", verdict=CheckStatus.WARNING, detail=f"{detail}: nearly full"
        )
    return CheckResult(check="disk", verdict=CheckStatus.OK, detail=detail)


def check_advertised(config: "ServerConfig", running: bool) -> CheckResult:
    """Can the address that clients are told be reached from here?"""
    advertised = config.kafka.advertised or config.kafka.addr
    name = f"advertised address {advertised}"
    try:
        found = socket.getaddrinfo(*advertised, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return CheckResult(
            check=name,
            verdict=CheckStatus.TROUBLE,
            detail=f"no such host: {advertised.host}",
            hint="clients are sent there after the first contact; set kafka.advertised",
        )
    resolved = ", ".join(sorted({str(entry[4][0]) for entry in found}))
    if not running:
        return CheckResult(check=name, verdict=CheckStatus.OK, detail=f"resolves to {resolved}")
    reason = _connect_error(advertised)
    if reason:
        return CheckResult(
            check=name,
            verdict=CheckStatus.TROUBLE,
            detail=f"resolves to {resolved}, but cannot be reached ({reason})",
            hint="clients are sent there after the first contact; set kafka.advertised",
        )
    return CheckResult(check=name, verdict=CheckStatus.OK, detail=f"reachable ({resolved})")


def _connect_error(address: "Address") -> str:
    try:
        place = (address.host, address.port)
        socket.create_connection(place, timeout=_CONNECT_SECONDS_MAX).close()
    except TimeoutError:
        return f"no answer within {_CONNECT_SECONDS_MAX:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def check_cluster(http: "Address") -> Iterator[CheckResult]:
    """Is the cluster of the broker that runs here whole, and has every topic more than one copy?"""
    from moldau.cli.cluster.health import broker_problems
    from moldau.cli.cluster.topology import connect, headline, problems, single_copies
    from moldau.client.errors import ClientError

    try:
        _, topology = connect(str(_reachable(http)))
    except ClientError as error:
        yield CheckResult(
            check="cluster",
            verdict=CheckStatus.WARNING,
            detail=f"the broker cannot be asked over HTTP ({error})",
            hint="is http.addr the one that it was started with?",
        )
        return
    found = problems(topology) + broker_problems(topology)
    yield CheckResult(
        check="cluster",
        verdict=CheckStatus.TROUBLE if found else CheckStatus.OK,
        detail="; ".join(found) or headline(topology),
        hint="look closer: moldau broker status" if found else "",
    )
    if single := single_copies(topology):
        yield CheckResult(
            check="copies",
            verdict=CheckStatus.WARNING,
            detail=f"{single.found}: records are lost if that disk fails",
            hint=f"for more copies, topic by topic: {single.command}",
        )


def check_open_files(connections_max: int) -> CheckResult:
    """May the process hold as many connections as it is configured for?"""
    if sys.platform == "win32":
        return CheckResult(check="open files", verdict=CheckStatus.OK, detail="not limited here")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        return CheckResult(
            check="open files",
            verdict=CheckStatus.WARNING,
            detail=f"the limit of {soft} is too low for kafka.connections_max = {connections_max}",
            hint=f"raise it: ulimit -n {wanted} · or lower kafka.connections_max",
        )
    shown = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return CheckResult(
        check="open files", verdict=CheckStatus.OK, detail=f"limit {shown} (hard {hard})"
    )
