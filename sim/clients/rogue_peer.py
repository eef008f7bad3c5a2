"""A client that calls brokers as a broker: without the secret, as an unknown broker, and as a known
one that sends garbage.

What it sends is never right. A broker closes the connection or refuses the hello, and goes on as if
nothing had been said; what it does then is judged by everybody else in the world.
"""

import asyncio
import random
import struct
from typing import Final

from moldau.log.datadir import Identity, read_identity
from moldau.log.secret_file import read_secret
from moldau.model.errors import CorruptionError
from moldau.model.ids import BrokerId, Epoch, Offset, RaftIndex, TimestampMs
from moldau.net.peers.frames import MORE_FOLLOWS, FrameKind, frame_head
from moldau.net.peers.handshake import CallerHandshake, Hello, HelloResponse, encode_hello
from moldau.net.peers.secret import NONCE_BYTES, Label, PeerSecret
from moldau.records.record import Record, build_batch
from moldau.replica.peer_codec import encode_append
from sim.cluster import RAFT_PORT, Cluster
from sim.node import Node
from sim.process import ClientProcess
from sim.scene import Scene

_LENGTH: Final = struct.Struct(">I")
_RUN: Final = struct.Struct(">BI")
_CONTROL: Final = struct.Struct(">BBiH")
_TIMEOUT_SECONDS: Final = 45.0
"""Longer than any broker waits for a hello, or for the rest of one."""


class RoguePeer:
    """One call after the other."""

    def __init__(self, cluster: Cluster, scene: Scene, process: ClientProcess) -> None:
        self._cluster = cluster
        self._scene = scene
        self._rng: random.Random = process.rng

    async def run(self) -> None:
        while not self._scene.is_over:
            try:
                deeds = (self._as_unproven, self._as_unknown, self._as_broker, self._as_leader)
                await self._rng.choice(deeds)()
                self._scene.count("rogue calls")
            except (OSError, EOFError, TimeoutError):
                self._scene.count("rogue calls lost")
            await self._scene.pause(self._rng, 0.4)

    # ---- whom it calls, and who it says it is

    def _identity(self, node: Node) -> Identity | None:
        try:
            return read_identity(node.disk)
        except (CorruptionError, OSError):
            return None

    def _secret(self, node: Node) -> PeerSecret | None:
        try:
            secret = read_secret(node.disk)
        except (CorruptionError, OSError):
            return None
        return None if secret is None else PeerSecret(secret.value, self._rng.randbytes)

    def _hello(self, sender: Node, target: Node) -> Hello | None:
        """As a true one would call."""
        identity, server = self._identity(sender), target.server
        if identity is None or identity.cluster_id is None or server is None:
            return None
        brokers = server._metadata.image.brokers if target.is_ready else {}
        if identity.broker_id is None or identity.broker_id not in brokers:
            return None
        known = brokers[identity.broker_id]
        return Hello(
            identity.cluster_id,
            known.id,
            identity.directory_id,
            BrokerId(target.broker_id),
            known.epoch,
        )

    def _two(self) -> "tuple[Node, Node] | None":
        nodes = [node for node in self._cluster.nodes if node.is_ready]
        if len(nodes) < 2:
            return None
        first, second = self._rng.sample(nodes, 2)
        return first, second

    async def _call(self, target: Node, data: bytes) -> bytes:
        """All that is answered until the broker closes. Raises OSError, TimeoutError."""
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(target.address, RAFT_PORT)
            try:
                writer.write(data)
                return await reader.read(-1)
            finally:
                writer.close()

    # ---- nobody

    async def _as_unproven(self) -> None:
        """It does not know the secret, or says what it overheard: it gets no answer, or but a
        challenge."""
        two = self._two()
        good = self._hello(*two) if two is not None else None
        secret = self._secret(two[1]) if two is not None else None
        if two is None or good is None or secret is None:
            return
        other = PeerSecret(self._rng.randbytes(32), self._rng.randbytes)
        proven = CallerHandshake(secret, good).hello
        hellos = (
            self._rng.randbytes(40),
            encode_hello(good),
            proven[:10],
            proven[:-3],
            CallerHandshake(other, good).hello,
            proven[:-32] + self._rng.randbytes(32),
        )
        chosen = self._rng.choice(hellos)
        if await self._call(two[1], _framed(chosen)):
            self._scene.violation(f"{two[1].name} answered an unknown client that sent {chosen!r}")
        # What it overhears: a hello, and the proof for another challenge.
        target, process = two[1], two[1].process
        said = await self._call(target, _framed(proven) + _framed(self._rng.randbytes(32)))
        is_one = len(said) < 4 or len(said) == 4 + int.from_bytes(said[:4], "big")
        if not is_one and target.process is process:
            self._scene.violation(f"{target.name} took a recorded hello for a peer's")

    async def _as_unknown(self) -> None:
        """It knows the secret, but is not who it says."""
        two = self._two()
        good = self._hello(*two) if two is not None else None
        secret = self._secret(two[1]) if two is not None else None
        if two is None or good is None or secret is None:
            return
        target = two[1]
        body = encode_hello(good)
        hellos = (
            b"Nope" + body[4:],
            body[:22] + b"\xff\xff" + body[24:],
            body[:24] + b"\xff\xfe" + body[26:],
            encode_hello(good._replace(version=99)),
            encode_hello(good._replace(cluster_id="another")),
            encode_hello(good._replace(target=BrokerId(good.target + 50))),
            encode_hello(good._replace(sender=good.target)),
            encode_hello(good._replace(sender=BrokerId(777))),
            encode_hello(good._replace(incarnation="copied")),
        )
        chosen = self._rng.choice(hellos)
        process = target.process
        handshake = CallerHandshake(secret, good)
        said = chosen + self._rng.randbytes(NONCE_BYTES)
        handshake._said = [said + secret.prove(Label.HELLO, said)]
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(target.address, RAFT_PORT)
            try:
                response = await _shake_hands(reader, writer, handshake)
            finally:
                writer.close()
        if not response.reason and target.process is process:
            self._scene.violation(f"{target.name} took {chosen!r} for a peer")

    # ---- a known broker that sends garbage

    async def _as_broker(self) -> None:
        """It takes the place of a true one, who calls again; what it says makes no sense."""
        two = self._two()
        good = self._hello(*two) if two is not None else None
        if two is None or good is None:
            return
        group = self._rng.randbytes(20)
        raft = (
            b"short",
            group + b"\x63",
            group + b"\x01" + struct.pack(">iqiqI", 1, 5, 1, 0, 99_999),
            group + b"\x01" + struct.pack(">iqiqI", -7, 5, 1, 0, 0),
            group + b"\x03" + b"\x00" * 4,
            group + b"\x07" + struct.pack(">iqiqqiHHI", 1, 9, 1, 3, 3, 1, 0, 0, 0),
            group + b"\x07" + struct.pack(">iqiqqiHHI", 1, 6, 1, 3, 3, 1, 0, 0, 9_999),
        )
        frames = [(FrameKind.RAFT, body) for body in raft]
        frames += [(FrameKind.HEARTBEAT, b"x"), (FrameKind.HEARTBEAT, bytes(200))]
        frames += [(FrameKind.REQUEST, b"x"), (FrameKind.REPLY, b""), (FrameKind.FAILURE, b"x")]
        kind, body = self._rng.choice(frames)
        frame = frame_head(kind, len(body)) + body
        chance = self._rng.random()
        if chance < 0.1:
            frame = frame_head(0x55, 3) + b"abc"
        elif chance < 0.2:
            pieces = [frame_head(each | MORE_FOLLOWS, 1) + b"x" for each in (1, 3)]
            frame = b"".join(pieces)
        await self._speak(two[1], good, frame)

    async def _as_leader(self) -> None:
        """Of one of its groups: entries that nobody can have written."""
        two = self._two()
        if two is None:
            return
        sender, target = two
        good = self._hello(sender, target)
        server = sender.server
        if good is None or server is None or server._driver is None:
            return
        led = [group for group in server._driver.groups.values() if group.is_leader]
        if not led:
            return
        group = self._rng.choice(led)
        core = group.core
        start = RaftIndex(max(0, core.commit - self._rng.randint(0, 3)))
        start = group.view.boundary(start) if start >= group.view.start_index else start
        junk = self._junk()
        head = encode_append(group.wire, core.epoch, start, Epoch(0), core.commit, len(junk))
        body = head + junk
        await self._speak(target, good, frame_head(FrameKind.RAFT, len(body)) + body)

    def _junk(self) -> bytes:
        """Entries of an Append."""
        good = build_batch([Record(Offset(0), TimestampMs(1_700_000_000_000), b"k", b"mad", [])])
        torn = bytearray(good)
        torn[-1] ^= 1
        runs = (self._rng.randbytes(70), bytes(torn), good[:-1], good + good)
        parts = [_RUN.pack(0, len(run)) + run for run in runs]
        parts += [_RUN.pack(0, 0), _RUN.pack(0, 9_999), b"\x07", b"\x00"]
        parts += [_CONTROL.pack(1, 1, 0, 500), _CONTROL.pack(1, 99, 0, 0)]
        parts += [_CONTROL.pack(1, 1, 1 << 30, 0)]
        return bytes(self._rng.choice(parts))

    async def _speak(self, target: Node, hello: Hello, frame: bytes) -> None:
        secret = self._secret(target)
        if secret is None:
            return
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(target.address, RAFT_PORT)
            try:
                response = await _shake_hands(reader, writer, CallerHandshake(secret, hello))
                if not response.reason:
                    writer.write(frame)
                    await self._scene.pause(self._rng, 0.1)
                    self._scene.count("rogue appends")
            finally:
                writer.close()


def _framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


async def _shake_hands(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handshake: CallerHandshake
) -> HelloResponse:
    """Raises OSError, EOFError."""

    async def receive() -> bytes:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(size)

    writer.write(_framed(handshake.hello))
    writer.write(_framed(handshake.prove(await receive())))
    return handshake.read_response(await receive())
