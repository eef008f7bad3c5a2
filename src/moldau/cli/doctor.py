"""`moldau doctor`: checks whether a broker can start here, and whole clusters (see `checkup`).

Checks change nothing (a directory is tested with a temporary file), are bounded in time, and say
what to do.
"""

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from moldau import __version__
from moldau.cli.broker import load
from moldau.cli.check_result import CheckResult, CheckStatus, ok, trouble, warning
from moldau.cli.checkup.listening import program_at
from moldau.cli.click_groups import command
from moldau.cli.cluster.topology import HttpAddresses
from moldau.cli.connection.current import (
    current_properties,
    current_security,
    profile_address,
    use_local_tokens,
)
from moldau.cli.connection.options import connection_options
from moldau.cli.doctor_certificates import check_certificates
from moldau.cli.errors import ExitCode
from moldau.cli.options import (
    Brokers,
    Duration,
    Properties,
    config_option,
    document_output_option,
    open_admin,
    set_option,
)
from moldau.cli.output import (
    color_wanted,
    counted,
    emit_rows,
    format_bytes,
    say,
    with_options,
)
from moldau.client.protocols import Protocol
from moldau.model.broker_report import FILES_BESIDE_CONNECTIONS, IDLE_MS
from moldau.model.compiled import described
from moldau.model.errors import MoldauError

if TYPE_CHECKING:
    from moldau.model.topology import Endpoint
    from moldau.server.config.schema import ServerConfig

_F = TypeVar("_F", bound=Callable[..., Any])

_CONNECT_SECONDS_MAX = 3.0

_PACKAGES = (
    *("confluent-kafka", "uvloop", "crc32c", "cramjam", "msgspec", "click", "rich", "PyYAML"),
    "cryptography",
)
_ADVERTISED_HINT = "clients connect to this address; set kafka.advertised"


_COLORS = {CheckStatus.OK: "green", CheckStatus.WARNING: "yellow", CheckStatus.TROUBLE: "red"}


def _address(*names: str, kind: Brokers, variable: str, help_text: str) -> Callable[[_F], _F]:
    return click.option(
        *names,
        type=kind,
        envvar=variable,
        metavar="HOST:PORT[,…]",
        is_eager=True,
        callback=profile_address,
        help=f"{help_text}; also {variable}.",
    )


@command(
    "doctor",
    examples=(
        "moldau doctor -b broker.example:9092      # every broker of that cluster",
        "moldau doctor --http host1.example:8080 -o json | jq '.[] | select(.verdict != \"ok\")'",
        "moldau doctor --config broker.yaml        # could a broker start here?",
    ),
)
@config_option
@set_option("A setting of the broker")
@_address("-b", "--brokers", kind=Brokers(), variable="MOLDAU_BROKERS",
          help_text="Check the cluster at these Kafka addresses")  # fmt: skip
@_address("--http", kind=HttpAddresses(), variable="MOLDAU_HTTP",
          help_text="Check the cluster at these HTTP addresses")  # fmt: skip
@click.option(
    "--idle",
    "idle_seconds",
    type=Duration(),
    default="10m",
    show_default=True,
    help="A group whose messages wait for longer, without a commit, is stuck.",
)
@document_output_option
@connection_options
@click.pass_context
def doctor(
    ctx: click.Context,
    config_file: str | None,
    settings: Properties,
    brokers: str | None,
    http: str | None,
    idle_seconds: float,
    output: str,
) -> int:
    """Check a whole cluster, or whether a broker can start on this machine.

    With addresses (also of the environment or a profile), every broker of the cluster is checked.
    Without, or with a configuration: this machine, and the cluster of the broker that runs here.
    Changes nothing. Exits with 1 if there is trouble, and with 3 if no address responds.
    """
    is_local = config_file is not None or bool(settings)
    typed = [
        name
        for name in ("brokers", "http")
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    found: list[CheckResult] = []
    if (brokers or http) and (typed or not is_local):
        # What is typed wins over the environment and the profile.
        kafka = brokers if not typed or "brokers" in typed else None
        web = http if not typed or "http" in typed else None
        found += [*check_versions(), *check_addresses(kafka, web, idle_ms=int(idle_seconds * 1000))]
    else:
        is_local = True
    if is_local:
        found += check_all(load({}, settings, config_file).config, int(idle_seconds * 1000))
    if output != "table":
        emit_rows([_row(result) for result in found], output, name="check")
    else:
        for result in found:
            _print(result)
        say(summary(found))
    if any(result.unreachable for result in found):
        return ExitCode.UNREACHABLE
    has_trouble = any(result.verdict is CheckStatus.TROUBLE for result in found)
    return ExitCode.FAILED if has_trouble else ExitCode.OK


def _row(result: CheckResult) -> dict[str, Any]:
    row = {**result._asdict(), "verdict": str(result.verdict)}
    del row["unreachable"]
    return row


def summary(found: Sequence[CheckResult]) -> str:
    """One line: how much is wrong."""
    count = Counter(result.verdict for result in found)
    if not count[CheckStatus.TROUBLE] and not count[CheckStatus.WARNING]:
        return f"all {len(found)} checks are ok"
    return (
        f"{counted(count[CheckStatus.TROUBLE], 'trouble')}, "
        f"{counted(count[CheckStatus.WARNING], 'warning')}, {count[CheckStatus.OK]} ok"
    )


def _print(result: CheckResult) -> None:
    color = color_wanted()
    mark = click.style(f"{result.verdict:<8}", fg=_COLORS[result.verdict], bold=True)
    click.echo(f"{mark} {result.check}: {result.detail}", color=color)
    if result.why:
        click.echo(f"{'':<8} why:  {result.why}")
    if result.hint:
        click.echo(f"{'':<8} hint: {with_options(result.hint)}")


def check_addresses(
    brokers: str | None, http: str | None, *, idle_ms: int = IDLE_MS
) -> Iterator[CheckResult]:
    """The cluster at these addresses, or why it cannot be checked."""
    from moldau.cli.checkup.findings import judge
    from moldau.cli.checkup.gather import GivenAddresses, find_cluster, gather

    given = GivenAddresses(http=tuple(http.split(",")) if http else (), kafka=brokers or "")
    try:
        topology, others, unreachable = find_cluster(given)
    except MoldauError as error:
        found = list(check_brokers(brokers)) if brokers else []
        is_lost = _is_lost(error) and all(each.unreachable for each in found)
        if is_lost or not brokers:
            yield trouble(
                f"address {','.join(filter(None, (brokers, http)))}",
                f"no broker responds, nothing of the cluster was checked: {error}"
                if is_lost
                else str(error),
                getattr(error, "hint", ""),
            )._replace(unreachable=is_lost)
            return
        yield from (each._replace(unreachable=False) for each in found)
        if http and found[0].unreachable:
            yield trouble(f"address {http}", str(error), getattr(error, "hint", ""))
            return
        # Its HTTP API is not to be had, or it is not Moldau.
        detail = f"only the Kafka addresses were checked: {error}"
        is_http = str(Protocol.HTTP) in str(error)
        mend = f"moldau doctor --http {brokers if is_http else 'HOST:8080'}"
        yield warning("cluster", detail, f"pass the HTTP address: {mend}")
        return
    yield from judge(
        gather(topology, idle_ms=idle_ms, other_clusters=others, unreachable=unreachable)
    )


def _is_lost(error: MoldauError) -> bool:
    from moldau.client.errors import TimedOutError, UnreachableError

    return isinstance(error, UnreachableError | TimedOutError)


def check_all(config: "ServerConfig", idle_ms: int = IDLE_MS) -> Iterator[CheckResult]:
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
    for listener in listeners_of(config):
        if listener == kafka:
            continue
        if running is None:
            yield check_port(listener.setting, listener.address, None)
        else:
            yield from check_shared_port(listener.setting, listener.address, kafka.address)
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
        yield from check_cluster(listeners_for(config, ListenerProtocol.HTTP)[0].address, idle_ms)


def check_listeners(config: "ServerConfig") -> Iterator[CheckResult]:
    """What the broker would warn of when it starts."""
    from moldau.server.config.listener_rules import doubts

    for danger in doubts(config):
        yield warning("security", danger)


def check_versions() -> Iterator[CheckResult]:
    """Installed versions, for bug reports."""
    from importlib.metadata import PackageNotFoundError, version

    import confluent_kafka

    yield ok(
        "versions",
        f"moldau {__version__} ({described()}), Python {platform.python_version()} on "
        f"{platform.system()} "
        f"{platform.machine()}, librdkafka {confluent_kafka.libversion()[0]}",
    )
    found, missing = [], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    yield ok("libraries", ", ".join(found))
    if missing:
        detail = f"not installed: {', '.join(missing)}"
        yield warning("libraries", detail, "install them: pip install moldau")


def check_brokers(brokers: str) -> Iterator[CheckResult]:
    """Can a client reach these brokers, and every address that they advertise?"""
    from moldau.client.errors import ClientError
    from moldau.model.topology import Endpoint

    try:
        cluster, nodes = open_admin(brokers, tuple(current_properties().items())).nodes()
    except ClientError as error:
        lost = trouble(f"brokers {brokers}", str(error), error.hint)
        yield lost._replace(unreachable=_is_lost(error))
        return
    ids = ", ".join(str(node.id) for node in nodes)
    yield ok(f"brokers {brokers}", f"cluster {cluster}, brokers {ids}")
    for node in nodes:
        name = f"broker {node.id} at {node.host}:{node.port}"
        if reason := _connect_error(node.host, node.port):
            yield trouble(name, f"cannot be reached ({reason})", _ADVERTISED_HINT)
        elif reason := _silence(str(Endpoint(node.host, node.port))):
            yield trouble(
                name,
                f"accepts connections, and does not respond ({reason})",
                "is its process stopped, its disk stuck? see its log, and restart it",
            )
        else:
            yield ok(name, "responds")


def _silence(address: str) -> str:
    """Why the Kafka broker at this address gives no response; empty if it gives one, if only to
    reject this user."""
    from moldau.client.errors import TimedOutError, UnreachableError
    from moldau.client.wire.client import KafkaClient

    try:
        with KafkaClient(
            address, timeout=_CONNECT_SECONDS_MAX, security=current_security()
        ) as client:
            client.cluster_id()
    except (TimedOutError, UnreachableError) as error:
        return str(error)
    except MoldauError:
        pass
    return ""


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
        return warning(
            name,
            f"a broker is already running ({running})",
            "start a second one: moldau dev --port 0 --data-dir ./.moldau-2",
        )
    try:
        family, kind, _, _, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        detail = f"{address.host} is not an address of this machine ({error.strerror})"
        return trouble(name, detail, f"set {key}")
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(target)
        except OSError as error:
            program = program_at(address)
            who = f"; {program}" if program else ""
            find = (
                f"stop it: kill {program.pid}"
                if program
                else (f"find the program, as root: lsof -i :{address.port}")
            )
            return trouble(
                name,
                f"cannot bind {key} ({(error.strerror or str(error)).lower()}{who})",
                f"{find} · use another port: --set {key}=HOST:PORT, or moldau dev --port 9192",
            )
    return ok(name, f"free ({key})")


def check_shared_port(key: str, address: "Endpoint", kafka: "Endpoint") -> Iterator[CheckResult]:
    """While a broker runs here: does another program listen at one of its addresses?

    Nothing, where the system does not say who listens.
    """
    broker, program = program_at(kafka), program_at(address)
    if broker is None or program is None:
        return
    name = f"port {address}"
    if program.pid == broker.pid:
        yield ok(name, f"used by the running broker ({key})")
    else:
        yield trouble(
            name,
            f"{key} is taken by another program ({program})",
            f"stop it: kill {program.pid} · use another port: --set {key}=HOST:PORT",
        )


def check_data_dir(data_dir: str, running: bool) -> Iterator[CheckResult]:
    """Does the directory exist or can it be created, is it writable, and not in use?"""
    name = f"data directory {data_dir}"
    other = "use another directory: --data-dir DIR"
    if not os.path.exists(data_dir):
        parent = _existing_parent(data_dir)
        if not os.path.isdir(parent):
            yield trouble(name, f"cannot be created: {parent} is not a directory", other)
        elif not os.access(parent, os.W_OK | os.X_OK):
            yield trouble(name, f"cannot be created: {parent} is not writable", other)
        else:
            yield ok(name, "will be created")
        return
    if not os.path.isdir(data_dir):
        yield trouble(name, "is a file, not a directory", other)
        return
    try:
        with tempfile.TemporaryFile(dir=data_dir) as stream:
            stream.write(b"moldau")
            stream.flush()
    except OSError as error:
        yield trouble(
            name,
            f"is not writable ({(error.strerror or str(error)).lower()})",
            f"change its permissions · {other}",
        )
        return
    if pid := lock_holder(data_dir):
        detail = f"in use by process {pid}"
        yield (
            warning(name, detail)
            if running
            else trouble(name, detail, f"stop that broker · {other}")
        )
        return
    if os.stat(data_dir).st_mode & 0o077:
        yield warning(name, "other users can read it", f"chmod 700 {data_dir}")
        return
    yield ok(name, "writable, not in use")


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
        return trouble(
            "disk",
            f"{detail}, less than the reserve of {format_bytes(reserve_bytes)}: the broker rejects "
            "writes",
            "free disk space, shorten log.retention_ms, or lower log.disk_reserve_bytes",
        )
    if inodes.f_files and inodes.f_favail < 1000:
        return trouble(
            "disk", f"only {inodes.f_favail} inodes free", "delete files: every file needs an inode"
        )
    if usage.free < 4 * reserve_bytes:
        return warning("disk", f"{detail}: nearly full")
    return ok("disk", detail)


def check_advertised(advertised: "Endpoint", running: bool) -> CheckResult:
    """Can the advertised address be resolved, and reached if the broker runs?"""
    name = f"advertised address {advertised}"
    try:
        found = socket.getaddrinfo(*advertised, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return trouble(name, f"unknown host {advertised.host}", _ADVERTISED_HINT)
    resolved = ", ".join(sorted({str(entry[4][0]) for entry in found}))
    if not running:
        return ok(name, f"resolves to {resolved}")
    if reason := _connect_error(*advertised):
        detail = f"resolves to {resolved}, but cannot be reached ({reason})"
        return trouble(name, detail, _ADVERTISED_HINT)
    return ok(name, f"reachable ({resolved})")


def _connect_error(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS_MAX).close()
    except TimeoutError:
        return f"timed out after {_CONNECT_SECONDS_MAX:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def check_cluster(http: "Endpoint", idle_ms: int = IDLE_MS) -> Iterator[CheckResult]:
    """The cluster of the broker that runs here."""
    from moldau.cli.checkup.findings import judge
    from moldau.cli.checkup.gather import GivenAddresses, find_cluster, gather
    from moldau.client.errors import RejectedError

    try:
        topology, _, _ = find_cluster(GivenAddresses(http=(str(_reachable(http)),)))
    except RejectedError as error:
        yield warning("cluster", f"the broker refuses this user ({error})", error.hint)
        return
    except MoldauError as error:
        detail = f"the broker does not respond over HTTP ({error})"
        hint = "was it started with another http.addr?" if _is_lost(error) else error.hint
        yield warning("cluster", detail, hint)
        return
    yield from judge(gather(topology, idle_ms=idle_ms))


def check_open_files(connections_max: int) -> CheckResult:
    """Does the limit of open files allow the configured connections?"""
    if sys.platform == "win32":
        return ok("open files", "not limited here")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections_max + FILES_BESIDE_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < needed:
        return warning(
            "open files",
            f"the limit of {soft} is too low for kafka.connections_max = {connections_max}",
            f"raise it: ulimit -n {needed} · or lower kafka.connections_max",
        )
    shown = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return ok("open files", f"limit {shown} (hard {hard})")
