"""Connects a broker with its peers: one listener, one link to each peer, and RPCs between them."""

import asyncio
import random
from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from typing import Protocol

from moldau.model.clock import Clock
from moldau.model.ids import BrokerId
from moldau.model.slices import Chunk
from moldau.net.peers.cuts import LinkCuts
from moldau.net.peers.frames import FrameKind
from moldau.net.peers.handshake import Hello
from moldau.net.peers.limits import LinkLimits
from moldau.net.peers.link import PeerLink
from moldau.net.peers.listener import PeerListener
from moldau.net.peers.rpc import PeerRpc
from moldau.net.peers.secret import PeerSecret
from moldau.net.sockets import OS_SOCKETS, Sockets
from moldau.net.tls.contexts import TlsContexts


class TransportHandler(Protocol):
    """Receives link events, and the frames that are not RPCs."""

    def on_link_up(self, peer: BrokerId) -> None: ...

    def on_link_lost(self, peer: BrokerId) -> None: ...

    def on_link_room(self, peer: BrokerId) -> None: ...

    def on_peer_changed(self, peer: BrokerId) -> None:
        """The peer's own link opened or closed: its earlier heartbeats are no longer valid."""
        ...

    def on_peer_exited(self, broker: BrokerId) -> None:
        """The peer's process has exited, as far as known."""
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
        secret: PeerSecret,
        authorize: Callable[[Hello], str | None],
        epoch: int = 0,
        limits: LinkLimits | None = None,
        sockets: Sockets = OS_SOCKETS,
        tls: TlsContexts | None = None,
        cuts: LinkCuts | None = None,
    ) -> None:
        """`incarnation`: the id of this broker's data directory; `epoch`: of its registration.

        `authorize` returns why a peer is rejected, or None. `recheck` calls it again. `cuts`: only
        in a broker that may be played with.
        """
        self._sockets = sockets
        self._loop = loop
        self._rng = rng
        self._cluster_id = cluster_id
        self.me = me
        self._incarnation = incarnation
        self._secret = secret
        self._tls = tls
        self._epoch = epoch
        self._limits = limits
        self._cuts = cuts
        self._cut_watches: set[asyncio.Task[None]] = set()
        if cuts is not None:
            cuts.on_cut, cuts.on_mended = self._on_cut, self._on_mended
        self._handler: TransportHandler
        """Set by `attach`."""
        self.links: dict[BrokerId, PeerLink] = {}
        first_id = int.from_bytes(secret.nonce()[:7], "big")
        self.rpc = PeerRpc(loop=loop, send=self._send, first_id=first_id)
        self.listener = PeerListener(
            loop=loop,
            clock=clock,
            cluster_id=cluster_id,
            me=me,
            secret=secret,
            authorize=authorize,
            handler=self,
            sockets=sockets,
            tls=tls,
        )

    def attach(self, handler: TransportHandler) -> None:
        """Set the handler; call before `start` and `add_peer`."""
        self._handler = handler

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Returns the address bound. Raises OSError."""
        return self.listener.bind(host, port)

    def start(self) -> None:
        self.listener.start()

    def add_peer(self, peer: BrokerId, address: tuple[str, int]) -> PeerLink:
        """Connect to a peer, or reconnect to its new address."""
        link = self.links.get(peer)
        if link is not None:
            link.set_address(address)
            return link
        link = self.links[peer] = PeerLink(
            loop=self._loop,
            rng=self._rng,
            hello=self._hello(peer),
            secret=self._secret,
            address=address,
            on_connected=partial(self._handler.on_link_up, peer),
            on_lost=partial(self._on_lost, peer),
            on_room=partial(self._handler.on_link_room, peer),
            on_connection_refused=partial(self._check_soon, peer),
            limits=self._limits,
            sockets=self._sockets,
            tls=self._tls,
            cuts=self._cuts,
        )
        link.start()
        return link

    def remove_peer(self, peer: BrokerId) -> None:
        link = self.links.pop(peer, None)
        if link is not None:
            link.stop()
            self.rpc.peer_lost(peer)
        self.listener.disconnect(peer, "the broker left the cluster")

    def _hello(self, peer: BrokerId) -> Hello:
        return Hello(self._cluster_id, self.me, self._incarnation, peer, self._epoch)

    @property
    def epoch(self) -> int:
        """Epoch of this broker's registration, as sent to peers."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """This broker was registered again: new connections use that epoch."""
        self._epoch = epoch
        for peer, link in self.links.items():
            link.set_hello(self._hello(peer))
            # It may have been rejected for its old epoch.
            link.retry_now()

    def recheck(self) -> None:
        self.listener.recheck()

    async def call(
        self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
    ) -> bytes:
        return await self.rpc.call(peer, method, payload, timeout_seconds)

    def queued_bytes(self, peer: BrokerId) -> int | None:
        """In the link to the peer; None: it is not connected."""
        link = self.links.get(peer)
        return link.queued_bytes if link is not None and link.is_connected else None

    def close(self) -> None:
        for watch in self._cut_watches:
            watch.cancel()
        for link in self.links.values():
            link.stop()
        self.listener.close()
        self.rpc.stop()

    def _send(self, peer: BrokerId, kind: FrameKind, chunks: list[Chunk]) -> bool:
        link = self.links.get(peer)
        if self._cuts is not None and peer in self._cuts.peers:
            # The system would take it, and wait for an acknowledgement.
            return link is not None and link.is_connected
        return link is not None and link.send(kind, chunks)

    # ---- links cut on purpose

    def _on_cut(self, peer: BrokerId) -> None:
        watch = self._loop.create_task(self._end_unacknowledged(peer))
        self._cut_watches.add(watch)
        watch.add_done_callback(self._cut_watches.discard)

    async def _end_unacknowledged(self, peer: BrokerId) -> None:
        seconds = (self._limits or LinkLimits()).unacknowledged_ms_max / 1000
        if self._cuts is None or not await self._cuts.stays_cut(peer, seconds):
            return
        if (link := self.links.get(peer)) is not None:
            link.reset("the peer acknowledges nothing: the link is cut")

    def _on_mended(self, peer: BrokerId) -> None:
        # Frames are missing in both directions, and the peer may not know of the cut.
        self.listener.disconnect(peer, "the link was cut")
        if (link := self.links.get(peer)) is not None:
            link.reset("the link was cut")
            link.retry_now()

    # ---- events of links

    def _on_lost(self, peer: BrokerId, reason: str) -> None:
        self.rpc.peer_lost(peer)
        self._handler.on_link_lost(peer)

    def _check_soon(self, peer: BrokerId) -> None:
        """In its own callback: an error in the handler must not break a dial or the listener."""
        self._loop.call_soon(self._check_exited, peer)

    def _check_exited(self, peer: BrokerId) -> None:
        """A peer has exited if its address refuses connections and it has none to this broker
        either: one of the two alone may be a network fault."""
        link = self.links.get(peer)
        if link is not None and link.is_connection_refused and peer not in self.listener.peers:
            self._handler.on_peer_exited(peer)

    # ---- events of the listener

    def on_peer_connected(self, hello: Hello) -> None:
        link = self.links.get(hello.sender)
        if link is not None:
            link.retry_now()
        self._handler.on_peer_changed(hello.sender)

    def on_peer_disconnected(self, sender: BrokerId) -> None:
        self._handler.on_peer_changed(sender)
        self._check_soon(sender)

    def on_peer_frame(self, sender: BrokerId, kind: FrameKind, body: memoryview) -> None:
        if self._cuts is not None and sender in self._cuts.peers:
            return
        if kind is FrameKind.RAFT:
            self._handler.on_raft(sender, body)
        elif kind is FrameKind.HEARTBEAT:
            self._handler.on_heartbeat(sender, body)
        else:
            self.rpc.on_frame(sender, kind, body)
