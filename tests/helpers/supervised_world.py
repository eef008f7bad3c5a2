"""A supervisor that is stepped by hand, with small stand-in processes in place of brokers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moldau.supervisor.state import ClusterState, Member, Ports
from moldau.supervisor.supervisor import Supervisor
from moldau.testing.waiting import wait_until

READY = "print('moldau 1 ready on h:1 (broker {id}, cluster C, data in d)', flush=True)"
SERVE = (
    # A handler would be too late for a signal that comes between its last look and a sleep.
    "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); "
    + READY
    + "; signal.sigwait({signal.SIGTERM}); sys.exit(0)"
)


def cluster(count: int) -> ClusterState:
    return ClusterState(
        ports=Ports(kafka=0, raft=0, http=0),
        replication_factor=1,
        next_id=count + 1,
        brokers=[
            Member(id=number, ports=Ports(kafka=1, raft=2, http=3), directory=f"broker-{number}")
            for number in range(1, count + 1)
        ],
    )


class World:
    """A supervisor that is stepped by hand; `scripts` say what a broker does."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        self.scripts: dict[int, str] = {}
        self.joins: list[tuple[int, str | None]] = []
        self.said: list[str] = []
        self.skipped = 0.0
        self.directory = directory
        self.state = cluster(count)
        self.supervisor = Supervisor(
            directory,
            self.state,
            notify=self.said.append,
            command_of=self.command,
            now=lambda: self.skipped,
        )

    def command(
        self, directory: Path, state: ClusterState, member: Member, join: str | None
    ) -> list[str]:
        self.joins.append((member.id, join))
        script = self.scripts.get(member.id, SERVE).replace("{id}", str(member.id))
        return [sys.executable, "-S", "-c", script]

    def until(self, condition: Callable[[], object]) -> None:
        def holds() -> bool:
            if not condition():
                self.supervisor.step(0.01)
            return bool(condition())

        wait_until(holds, "it is so", describe=lambda: (self.states, self.said))

    def ask(self, verb: str, **arguments: Any) -> Any:
        """What another process would ask, answered by the next step."""
        return self.supervisor._handle({"verb": verb, **arguments})

    @property
    def states(self) -> list[str]:
        return [member.state for member in self.state.brokers]

    def all(self, state: str) -> bool:
        return set(self.states) == {state}
