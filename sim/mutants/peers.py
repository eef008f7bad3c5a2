"""Bugs between brokers: their RPCs, and which of them are peers."""

import asyncio
from typing import Any

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.handshake import Hello, ListenerHandshake
from moldau.net.peers.rpc import PeerRpc
from moldau.net.peers.secret import Label, PeerSecret
from sim.mutants import mutant
from sim.mutants.raft import ELECTIONS

BREAKS_OFTEN = {"break": 0.25, "slow-network": 1.0}
"""So often that many requests are on their way when a connection ends, and that a late response
meets the next request."""


AGAIN_SECONDS = 0.5
"""A lost link is usually back by then."""


async def _call_by_free_number(self: PeerRpc, *args: Any) -> bytes:
    self._next_id = next(number for number in range(1, 10_000) if number not in self._open)
    return await _call(self, *args)


async def _call_again(
    self: PeerRpc, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
) -> bytes:
    try:
        return await _call(self, peer, method, payload, timeout_seconds)
    except RefusedError as error:
        if error.code not in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT):
            raise
    # At once, a link that was lost is not back yet, and the repetition would not be sent.
    await asyncio.sleep(AGAIN_SECONDS)
    return await _call(self, peer, method, payload, timeout_seconds)


_call = PeerRpc.call


def _settle_all_well(self: PeerRpc, sender: BrokerId, request_id: int, result: Any) -> None:
    _settle(self, sender, request_id, b"" if isinstance(result, RefusedError) else result)


_settle = PeerRpc._settle


def _believe(self: PeerSecret, proof: bytes, label: Label, *messages: bytes) -> bool:
    return True


def _believe_hello(self: ListenerHandshake, proof: bytes) -> Hello:
    assert self.hello is not None
    self._said.append(proof)
    return self.hello


MUTANTS = (
    mutant(
        "GivesNumbersAgain",
        "net/peers",
        "a late response is taken for that to another request of the same number",
        BREAKS_OFTEN,
        (PeerRpc, "call", _call_by_free_number),
        admin=True,
        transactional=4,
    ),
    mutant(
        "AsksAgain",
        "net/peers",
        "a request whose response is lost is repeated, whatever it is about",
        BREAKS_OFTEN,
        (PeerRpc, "call", _call_again),
        admin=True,
    ),
    mutant(
        "IgnoresRefusals",
        "net/peers",
        "a refusal is taken for an empty answer",
        ELECTIONS,
        (PeerRpc, "_settle", _settle_all_well),
        transactional=2,
    ),
    mutant(
        "BelievesEveryProof",
        "net/peers",
        "a client that does not know the secret of the cluster is taken for a peer",
        {},
        (PeerSecret, "is_proof", _believe),
        rogue_peer=True,
    ),
    mutant(
        "ForgetsTheChallenge",
        "net/peers",
        "a recorded hello is enough to be taken for a peer",
        {},
        (ListenerHandshake, "check", _believe_hello),
        rogue_peer=True,
    ),
)
