"""Faults on purpose, where the broker was started to be played with; others refuse them."""

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.play import PlayAction, PlayBoard, Playground


class PlayService:
    """Methods raise RefusedError."""

    def __init__(self, me: BrokerId, ground: Playground | None) -> None:
        """`ground` None: as for every broker in production, and no request can change it."""
        self._me = me
        self._ground = ground

    def is_offered(self) -> bool:
        return self._ground is not None

    async def board(self) -> PlayBoard:
        return await self._needed().board(self._me)

    async def do(self, action: PlayAction) -> PlayBoard:
        """Returns the board after it."""
        ground = self._needed()
        await ground.do(action, self._me)
        return await ground.board(self._me)

    def _needed(self) -> Playground:
        if self._ground is None:
            error = RefusedError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "This broker cannot be played with: it was started for real use",
            )
            error.hint = "a cluster to play with: moldau cluster start"
            raise error
        return self._ground
