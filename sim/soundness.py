"""Looks inside of brokers: whether the parts of one of them contradict themselves.

The product says what must hold of each between two steps, for its own tests. Here it has to hold in
whole brokers, under faults.
"""

from collections.abc import Sequence

from moldau.model.invariants import InvariantError
from moldau.raft.errors import RaftError
from moldau.server.broker import BrokerServer
from sim.node import Node
from sim.scene import Scene


class Soundness:
    """Looks at one broker at a time, in turns."""

    def __init__(self, scene: Scene, nodes: Sequence[Node]) -> None:
        self._scene = scene
        self._nodes = nodes
        self._turn = 0

    def look(self) -> None:
        """Between two events."""
        self._turn += 1
        node = self._nodes[self._turn % len(self._nodes)]
        server = node.server
        if server is None or not node.is_ready:
            return
        try:
            self._look_at(server)
        except (RaftError, InvariantError) as error:
            self._broken(node, error)

    def _look_at(self, server: BrokerServer) -> None:
        assert server._driver is not None
        for group in server._driver.groups.values():
            # The core receives what was appended in this turn at its end.
            if group.failure is None and not group.is_removed and not group.proposed:
                group.core.check_invariants()
        coordinators = server._coordinators
        for groups in coordinators.groups._coordinators.values():
            if groups.is_current and groups.state.loaded:
                groups.state.check_invariants()
        for transactions in coordinators.transactions._coordinators.values():
            if transactions.is_current and transactions.state.loaded:
                transactions.state.check_invariants()

    def _broken(self, node: Node, error: Exception) -> None:
        self._scene.violation(f"{node.name}: {type(error).__name__}: {error}")
