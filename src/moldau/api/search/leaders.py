"""Asks the leaders of partitions, this broker or others, for pieces of a search."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from moldau.api.quotas import charged
from moldau.data.search.pieces import SearchPieces
from moldau.data.search.types import Piece, PieceWanted, SearchWanted
from moldau.metadata.image import Topic
from moldau.metadata.leaders import NO_LEADER_ID, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod

_CALL_SECONDS: Final = 3.0
"""Beyond the budget: the thread of a leader may have to finish a large batch first."""

_decode: Final = msgspec.msgpack.Decoder(list[Piece]).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class SearchLeaders:
    def __init__(
        self,
        *,
        me: BrokerId,
        leader_of: Callable[[Topic, int], Leader],
        pieces: SearchPieces,
        caller: PeerCaller,
    ) -> None:
        self._me = me
        self._leader_of = leader_of
        self._pieces = pieces
        self._caller = caller

    async def search(
        self, topic: Topic, wanted: SearchWanted, pieces: Sequence[PieceWanted]
    ) -> list[Piece]:
        """What the leaders searched; an error for each partition whose leader did not respond."""
        by_leader: dict[BrokerId, list[PieceWanted]] = defaultdict(list)
        for each in pieces:
            by_leader[self._leader_of(topic, each.partition).broker].append(each)
        found = await asyncio.gather(
            *(
                charged(self._ask(leader, replace(wanted, pieces=some)))
                for leader, some in by_leader.items()
            )
        )
        return [piece for some in found for piece in some]

    async def _ask(self, leader: BrokerId, wanted: SearchWanted) -> list[Piece]:
        try:
            if leader == NO_LEADER_ID:
                raise RefusedError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    f"{wanted.topic}-{wanted.pieces[0].partition} has no leader at the moment",
                )
            if leader == self._me:
                return await self._pieces.search(wanted)
            reply = await self._caller.call(
                leader,
                PeerMethod.SEARCH_PIECES,
                _encode(wanted),
                wanted.budget_ms / 1000 + _CALL_SECONDS,
            )
            return _decode(reply)
        except MALFORMED as error:
            code, message = ErrorCode.NETWORK_EXCEPTION, f"broker {leader}: {error}"
        except RefusedError as error:
            code, message = error.code, str(error)
        return [
            Piece(
                partition=each.partition,
                begin=0,
                position=0,
                start=0,
                stop=0,
                reached=None,
                hits=[],
                bytes_searched=0,
                bytes_read=0,
                unreadable=[],
                error=int(code),
                message=message,
            )
            for each in wanted.pieces
        ]
