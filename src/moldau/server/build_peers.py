"""Builds what connects a broker with its peers, and lets new ones in."""

from asyncio import AbstractEventLoop

from moldau.control.cluster_service import ClusterService
from moldau.control.join_service import JoinService
from moldau.log.secret_file import ClusterSecret
from moldau.model.layout import SECRET_FILE
from moldau.model.loopback import is_loopback
from moldau.net.peers.secret import PeerSecret
from moldau.net.tls.contexts import TlsContexts
from moldau.replica.driver import RaftDriver
from moldau.replica.flusher import Flusher
from moldau.replica.transport import Transport
from moldau.server.machine import Machine
from moldau.server.membership import ClusterMembership
from moldau.server.peer_links import PeerLinks
from moldau.server.ports import ReservedPort
from moldau.server.storage import Storage


def build_peers(
    membership: ClusterMembership,
    links: PeerLinks,
    raft: ReservedPort,
    *,
    loop: AbstractEventLoop,
    machine: Machine,
    flusher: Flusher,
    storage: Storage,
    tls: TlsContexts | None,
) -> tuple[Transport, RaftDriver]:
    """The port is bound, and not listened on yet."""
    transport = Transport(
        loop=loop,
        clock=machine.clock,
        rng=machine.rng,
        cluster_id=membership.cluster_id,
        me=membership.broker_id,
        incarnation=membership.directory_id,
        secret=_peer_secret(membership.secret, machine),
        authorize=links.refusal,
        epoch=membership.epoch,
        sockets=machine.sockets,
        tls=tls,
        cuts=None if machine.play is None else machine.play.cuts,
    )
    driver = RaftDriver(
        loop=loop,
        clock=machine.clock,
        rng=machine.rng,
        flusher=flusher,
        votes=storage.votes,
        transport=transport,
    )
    transport.bind(raft.host, raft.port)
    return transport, driver


def _peer_secret(secret: ClusterSecret, machine: Machine) -> PeerSecret:
    earlier = None
    if secret.earlier is not None:
        earlier = PeerSecret(secret.earlier, machine.secret_bytes)
    return PeerSecret(secret.value, machine.secret_bytes, earlier)


def build_join_service(
    membership: ClusterMembership,
    cluster: ClusterService,
    links: PeerLinks,
    http: ReservedPort,
    machine: Machine,
    storage: Storage,
) -> JoinService:
    return JoinService(
        join=cluster.join,
        tokens=lambda: cluster.image.join_tokens,
        secret=membership.secret,
        clock=machine.clock,
        random_bytes=machine.secret_bytes,
        local_secret_file=str(storage.root / SECRET_FILE) if is_loopback(http.host) else "",
        on_return=links.on_return,
    )
