"""Faults on purpose: who may see them, and who may make them."""

from moldau.api.broker import Broker
from moldau.api.guard import Guard
from moldau.model.play import PlayAction, PlayBoard
from moldau.security.acl import ResourceType


class GuardedPlay:
    """Methods raise RefusedError."""

    __slots__ = ("_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._service = broker.play

    def is_offered(self) -> bool:
        return self._service.is_offered()

    async def board(self) -> PlayBoard:
        self._guard.check("play.board", ResourceType.CLUSTER)
        return await self._service.board()

    async def do(self, action: PlayAction) -> PlayBoard:
        self._guard.check("play.do", ResourceType.CLUSTER, about=action)
        return await self._service.do(action)
