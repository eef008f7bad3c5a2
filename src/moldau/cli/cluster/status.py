"""The state of a cluster on one machine, from its supervisor, its file and its brokers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.cli.cluster.every_address import ask_settled
from moldau.cli.cluster.health import broker_problems
from moldau.cli.cluster.problems import problems
from moldau.cli.connection.clients import cluster_client
from moldau.cli.connection.current import use_local_tokens
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.output import with_options
from moldau.client.processes import is_running
from moldau.model.cluster_problems import Problem
from moldau.supervisor.control import send_request, state_of
from moldau.supervisor.state import DEFAULT_DIR, ClusterState, need_state

if TYPE_CHECKING:
    from moldau.client.cluster_client import ClusterClient
    from moldau.model.topology import Topology


def dir_flag(data_dir: Path) -> str:
    return "" if data_dir == Path(DEFAULT_DIR) else f" --data-dir {data_dir}"


def one_line(reason: str) -> str:
    return "; ".join(line.removeprefix("error: ") for line in reason.splitlines())


def live(data_dir: Path) -> tuple[ClusterState, bool]:
    """The current state, and whether a supervisor runs."""
    state = need_state(data_dir)
    use_local_tokens(
        {
            address: data_dir / member.directory
            for member in state.brokers
            for address in (member.http, member.kafka)
        }
    )
    reply = send_request(state.control, "status")
    if reply is not None:
        return state_of(reply), True
    for member in state.brokers:
        if is_running(member.process):
            member.state = "unsupervised"
        else:
            member.state, member.pid, member.started = "stopped", None, None
    return state, False


def supervised_state(data_dir: Path) -> ClusterState:
    """The current state; raises CommandError if no supervisor runs."""
    state, supervised = live(data_dir)
    if supervised:
        return state
    flag = dir_flag(data_dir)
    if any(member.pid for member in state.brokers):
        raise CommandError(
            f"the supervisor of the cluster in {data_dir} is not running; its brokers are",
            hint=f"restart it: moldau cluster stop{flag}, then moldau cluster start -d{flag}",
        )
    raise CommandError(
        f"the cluster in {data_dir} is not running", hint=f"start it: moldau cluster start{flag}"
    )


def client_of(state: ClusterState, *, without: int | None = None) -> "ClusterClient":
    """A client of the running brokers, except `without`."""
    others = [member for member in state.brokers if member.id != without] or state.brokers
    up = [member.http for member in others if member.state in ("ready", "unsupervised")]
    return cluster_client(up or [member.http for member in others])


def topology_of(state: ClusterState) -> tuple["Topology | None", str, ExitCode]:
    """What the running brokers return; or why there is nothing, and the exit code for that."""
    from moldau.client.errors import ClientError, TimedOutError, UnreachableError

    running = [
        member.http
        for member in state.brokers
        if member.pid is not None and member.state != "paused"
    ]
    if not running:
        return None, "no broker is running, or all are paused", ExitCode.UNREACHABLE
    try:
        # A partitioned or removed broker still responds, with an old topology.
        return ask_settled(running).topology, "", ExitCode.OK
    except ClientError as error:
        hint = f" ({with_options(error.hint)})" if error.hint else ""
        is_lost = isinstance(error, UnreachableError | TimedOutError)
        code = ExitCode.UNREACHABLE if is_lost else ExitCode.FAILED
        return None, f"no broker responds over HTTP: {error}{hint}", code


def member_rows(data_dir: Path, state: ClusterState) -> list[dict[str, Any]]:
    return [
        {
            "id": member.id,
            "pid": member.pid,
            "kafka": member.kafka,
            "http": member.http,
            "grpc": member.grpc,
            "raft": member.raft,
            "data_dir": str(data_dir / member.directory),
            "state": member.state,
        }
        for member in state.brokers
    ]


def departed(state: ClusterState, topology: "Topology | None") -> list[int]:
    """Brokers that run here but have left the cluster."""
    if topology is None:
        return []
    known = {broker.id for broker in topology.brokers}
    return [member.id for member in state.brokers if member.joined and member.id not in known]


def status_rows(state: ClusterState, topology: "Topology | None") -> list[dict[str, Any]]:
    known = {broker.id: broker for broker in topology.brokers} if topology else {}
    members = {member.id: member for member in state.brokers}
    rows = []
    for number in sorted(known.keys() | members.keys()):
        member, broker = members.get(number), known.get(number)
        shown = member.state if member else "remote"
        if shown == "ready" and broker is not None and not broker.alive:
            # So the supervisor has seen it last: its process runs.
            shown = "running"
        if broker is not None and broker.state == "draining":
            shown += ", draining"
        elif member is not None and topology is not None and broker is None and member.joined:
            shown += ", removed"
        rows.append(
            {
                "id": number,
                "pid": member.pid if member else None,
                "state": shown,
                "alive": broker.alive if broker else None,
                "controller": broker.is_controller if broker else None,
                "leaders": broker.leaders if broker else None,
                "replicas": broker.replicas if broker else None,
                "kafka": member.kafka if member else str(broker.kafka) if broker else None,
                "http": member.http if member else str(broker.http) if broker else None,
            }
        )
    return rows


def member_problems(
    data_dir: Path, state: ClusterState, supervised: bool, topology: "Topology | None", why: str
) -> list[Problem]:
    """`why`: there is no topology."""
    flag = dir_flag(data_dir)
    if not any(member.pid for member in state.brokers) and not supervised:
        return [Problem("the cluster is not running", f"start it: moldau cluster start{flag}")]
    found = []
    if not supervised:
        remedy = f"run moldau cluster stop{flag}, then moldau cluster start{flag}"
        found.append(Problem("the supervisor is not running", remedy))
    left = departed(state, topology)
    dead = {broker.id for broker in topology.brokers if not broker.alive} if topology else set()
    down = set()
    for member in state.brokers:
        if member.id in left:
            continue
        reason = one_line(member.reason)
        if member.state in ("killed", "stopped"):
            down.add(member.id)
            because = f" ({reason})" if reason else ""
            remedy = f"start it: moldau cluster restart {member.id}{flag}"
            found.append(Problem(f"broker {member.id} is {member.state}{because}", remedy))
        elif member.state == "paused":
            down.add(member.id)
            remedy = f"let it go on: moldau cluster resume {member.id}{flag}"
            found.append(Problem(f"broker {member.id} is paused {reason}", remedy))
        elif member.state == "ready" and member.id in dead:
            down.add(member.id)
            found.append(
                Problem(
                    f"broker {member.id} is not alive, but its process {member.pid} runs: it hangs",
                    f"restart it: moldau cluster restart {member.id}{flag}",
                )
            )
        elif member.state not in ("ready", "unsupervised"):
            because = f": {reason}" if reason else ""
            remedy = f"see its log: {data_dir}/broker-{member.id}.log"
            found.append(Problem(f"broker {member.id} is {member.state}{because}", remedy))
    if topology is not None:
        found += problems(topology, known_down=down) + broker_problems(topology)
    elif any(member.pid for member in state.brokers):
        found.append(Problem(why, f"see the logs: {data_dir}/broker-*.log"))
    return found
