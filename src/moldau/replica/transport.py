"""Owns a broker's place among its peers: one listener, one link to each, questions between them."""

import random
from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from typing import Protocol

from moldau.model.clock import Clock
from moldau.model.ids import BrokerId
from moldau.model.slices import Chunk
from moldau.net.peers.frames import FrameKind
from moldau.net.peers.handshake import Hello
from moldau.net.peers.link import LinkLimits, PeerLink
from moldau.net.peers.listener import PeerListener
from moldau.net.peers.rpc import PeerRpc
from moldau.net.sockets import OS_SOCKETS, Sockets


class TransportHandler(Protocol):
    """Who is told of links, and of frames that are no questions."""

    def on_link_up(self, peer: BrokerId) -> None: ...

    def on_link_lost(self, peer: BrokerId) -> None: ...

    def on_link_room(self, peer: BrokerId) -> None: ...

    def on_peer_changed(self, peer: BrokerId) -> None:
        """The peer's own link came up, or went: what it said before counts no more."""
        ...

    def on_peer_ended(self, broker: BrokerId) -> None:
        """Its process is gone, as far as can be told."""
        ...

    def on_raft(self, sender: BrokerId, body: memoryview) -> None: ...

    def on_heartbeat(self, sender: BrokerId, body: memoryview) -> None: ...


class Transport:
    """Links and listener of one broker."""

    def __init__(
        self,
        *,
        loop: AbstractEventLoop,
        clock: Clock,
        rng: random.Random,
        cluster_id: str,
        me: BrokerId,
        incarnation: str,
        authorize: Callable[[Hello], str | None],
        epoch: int = 0,
        limits: LinkLimits | None = None,
        sockets: Sockets = OS_SOCKETS,
    ) -> None:
        """`incarnation`: the id of this broker's data directory; `epoch`: of its registration.

        `authorize` returns why a caller is refused, or None. It is asked again by `recheck`.
        """
        self._sockets = sockets
        self._loop = loop
        self._rng = rng
        self._cluster_id = cluster_id
        self.me = me
        self._incarnation = incarnation
        self._epoch = epoch
        self._limits = limits
        self._handler: TransportHandler | None = None
        self.links: dict[BrokerId, PeerLink] = {}
        self.rpc = PeerRpc(loop=loop, send=self._send)
        self.listener = PeerListener(
            loop=loop,
            clock=clock,
            cluster_id=cluster_id,
            me=me,
            authorize=authorize,
            handler=self,
            sockets=sockets,
        )

    def attach(self, handler: TransportHandler) -> None:
        """Before start."""
        self._handler = handler

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Returns the address bound. Raises OSError."""
        return self.listener.bind(host, port)

    def start(self) -> None:
        self.listener.start()

    def add_peer(self, peer: BrokerId, address: tuple[str, int]) -> PeerLink:
        """Dial a peer, or dial it elsewhere."""
        link = self.links.get(peer)
        if link is not None:
            link.move(address)
            return link
        link = self.links[peer] = PeerLink(
            loop=self._loop,
            rng=self._rng,
            hello=self._hello(peer),
            address=address,
            on_connected=partial(self._on_connected, peer),
            on_lost=partial(self._on_lost, peer),
            on_room=partial(self._on_room, peer),
            on_connection_refused=partial(self._check_soon, peer),
            limits=self._limits,
            sockets=self._sockets,
        )
        link.start()
        return link

    def remove_peer(self, peer: BrokerId) -> None:
        """It left the cluster."""
        link = self.links.pop(peer, None)
        if link is not None:
            link.stop()
            self.rpc.peer_lost(peer)
        self.listener.disconnect(peer, "the broker left the cluster")

    def _hello(self, peer: BrokerId) -> Hello:
        return Hello(self._cluster_id, self.me, self._incarnation, peer, self._epoch)

    @property
    def epoch(self) -> int:
        """Of this broker's registration, as it tells its peers."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """This broker is registered anew: connections made from now on say so."""
        self._epoch = epoch
        for peer, link in self.links.items():
            link.introduce(self._hello(peer))
            # Perhaps it was refused for this very reason.
            link.nudge()

    def recheck(self) -> None:
        """Close the connections of peers that `authorize` refuses by now."""
        self.listener.recheck()

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        """Ask a peer. Raises RefusedError."""
        return await self.rpc.call(peer, method, payload, timeout_seconds)

    def close(self) -> None:
        for link in self.links.values():
            link.stop()
        self.listener.close()
        self.rpc.stop()

    def _send(self, peer: BrokerId, kind: FrameKind, chunks: list[Chunk]) -> bool:
        link = self.links.get(peer)
        return link is not None and link.send(kind, chunks)

    # ---- what the links say

    def _on_connected(self, peer: BrokerId) -> None:
        if self._handler is not None:
            self._handler.on_link_up(peer)

    def _on_lost(self, peer: BrokerId, reason: str) -> None:
        self.rpc.peer_lost(peer)
        if self._handler is not None:
            self._handler.on_link_lost(peer)

    def _on_room(self, peer: BrokerId) -> None:
        if self._handler is not None:
            self._handler.on_link_room(peer)

    def _check_soon(self, peer: BrokerId) -> None:
        """Not within what found it: a defect in an owner must not end a dial or a listener."""
        self._loop.call_soon(self._check_ended, peer)

    def _check_ended(self, peer: BrokerId) -> None:
        """A peer at whose address nobody listens, and that has no connection to this broker either:
        one of the two alone may be a fault of the network."""
        link = self.links.get(peer)
        if link is None or not link.is_connection_refused or peer in self.listener.peers:
            return
        if self._handler is not None:
            self._handler.on_peer_ended(peer)

    # ---- what the listener says

    def on_peer_connected(self, hello: Hello) -> None:
        link = self.links.get(hello.sender)
        if link is not None:
            link.nudge()
        if self._handler is not None:
            self._handler.on_peer_changed(hello.sender)

    def on_peer_disconnected(self, sender: BrokerId) -> None:
        if self._handler is not None:
            self._handler.on_peer_changed(sender)
        self._check_soon(sender)

    def on_peer_frame(self, sender: BrokerId, kind: FrameKind, body: memoryview) -> None:
        handler = self._handler
        if kind is FrameKind.RAFT:
            if handler is not None:
                handler.on_raft(sender, body)
        elif kind is FrameKind.HEARTBEAT:
            if handler is not None:
                handler.on_heartbeat(sender, body)
        else:
            self.rpc.on_frame(sender, kind, body)
