"""Spark pipelines, by what they publish."""

from moldau.api.broker import Broker
from moldau.api.cluster_pipelines import PipelineBoard
from moldau.api.guard import Guard
from moldau.security.acl import ResourceType


class GuardedPipelines:
    """Methods raise RefusedError."""

    __slots__ = ("_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._service = broker.pipelines

    async def board(self) -> PipelineBoard:
        """All pipelines, by name."""
        self._guard.check("pipelines.board", ResourceType.CLUSTER)
        return await self._service.board()
