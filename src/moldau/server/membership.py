"""Decides which cluster a broker belongs to: it bootstraps one, joins one, or returns to its own.

The data directory decides. One that belongs to a cluster returns to it, whatever the configuration
says. An empty one joins through `join_addr`, or bootstraps a cluster if configured to, or does what
the initial members agree on (formation.py): a broker that lost its disk looks like a new one, and
must not bootstrap its cluster a second time. The decision is on disk before anything else is done.

A cluster's id ends with a random number, so that no configuration can create the same id again.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from moldau.log.datadir import Identity
from moldau.log.secret_file import ClusterSecret
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.snapshot import decode_image
from moldau.model.cluster_ids import is_named, new_cluster_id
from moldau.model.errors import ConfigError, CorruptionError
from moldau.model.ids import NO_EPOCH, BrokerId
from moldau.model.topology import Endpoint, JoinRequest, Listeners
from moldau.raft.membership import Members
from moldau.replica.peer_codec import METADATA_GROUP
from moldau.server.cluster_secret import (
    JoinKey,
    join_key,
    join_token,
    make_secret,
    read_join_token,
    read_secret_file,
)
from moldau.server.config.schema import ServerConfig
from moldau.server.formation import Formation, served_as_newcomer
from moldau.server.join import join_cluster
from moldau.server.machine import JOIN_TOKEN_VARIABLE, Machine
from moldau.server.ports import ReservedPort
from moldau.server.storage import Storage

_JOIN_SECONDS_MAX: Final = 120.0
_FIRST_ID: Final = BrokerId(1)


class Endpoints(Struct, frozen=True, kw_only=True):
    """The advertised addresses of this broker."""

    kafka: Endpoint
    raft: Endpoint
    http: Endpoint
    grpc: Endpoint | None = None
    listeners: Listeners = ()


class ClusterMembership(Struct, frozen=True, kw_only=True):
    """A broker's identity in its cluster."""

    broker_id: BrokerId
    cluster_id: str
    directory_id: str
    process: str
    endpoints: Endpoints
    metadata_members: Members
    """Of the metadata group, if the log does not contain them."""
    is_bootstrap_broker: bool
    image: Image
    """The cluster's image from the join response; empty unless this broker has just joined."""
    epoch: int
    """Of the registration, if known."""
    secret: ClusterSecret


async def enter_cluster(
    config: ServerConfig,
    storage: Storage,
    endpoints: Endpoints,
    machine: Machine,
    http: ReservedPort,
    *,
    is_log_empty: bool,
) -> ClusterMembership:
    """As `resolve_membership`; a broker that looks for its cluster among the initial members says
    at its HTTP port that it is one of them."""
    identity = storage.identity
    has_cluster = identity is not None and identity.cluster_id is not None
    if not config.initial_members or (has_cluster and not is_log_empty):
        return await resolve_membership(
            config, storage, endpoints, machine, is_log_empty=is_log_empty
        )
    # All processes of a node are one initial member, by the address that they share.
    me = endpoints.http if machine.node is None else machine.node.http
    formation = Formation(config, me, machine)
    async with served_as_newcomer(
        formation, http, machine, machine.http_tls, is_new=not has_cluster
    ):
        return await resolve_membership(
            config,
            storage,
            endpoints,
            machine,
            is_log_empty=is_log_empty,
            formation=formation,
        )


async def resolve_membership(
    config: ServerConfig,
    storage: Storage,
    endpoints: Endpoints,
    machine: Machine,
    *,
    is_log_empty: bool,
    formation: Formation | None = None,
) -> ClusterMembership:
    """Bootstrap, join or return. Raises ConfigError, CorruptionError, StorageError.

    `formation` finds the cluster among the initial members, if there are any.
    """
    identity = storage.identity
    process = machine.new_uuid().hex
    known = storage.read_secret()
    # One that is made now is for a cluster that begins: `keep_first_secret` sees to that.
    secret = known or _configured_secret(config) or make_secret(machine)
    if identity is not None:
        _check_belongs(config, identity)
        if identity.cluster_id is not None and not is_log_empty:
            return _membership(identity, process, endpoints, secret)
        if identity.is_bootstrapping and not storage.find_logs():
            # The broker was killed during the bootstrap: continue it.
            return _membership(identity, process, endpoints, secret)
    join_addr, may_bootstrap = config.join_addr, config.bootstrap
    if formation is not None:
        join_addr = await formation.find(may_bootstrap=identity is None)
        may_bootstrap = join_addr is None
    if join_addr is None:
        if identity is None:
            identity = _bootstrap(config, storage, machine, secret, may_bootstrap)
            return _membership(identity, process, endpoints, secret)
        if _took_part(storage):
            raise CorruptionError(
                "the folder metadata in the data directory is missing or empty, although this "
                f"broker is a member of cluster {identity.cluster_id}: nothing was changed; start "
                "it with --join-addr of another member to replicate it again, or restore it from "
                "a backup"
            )
        raise ConfigError(
            "the data directory was created to join a cluster, but has not joined it yet; "
            "start with --join-addr, or choose another directory"
        )
    directory_id = identity.directory_id if identity is not None else str(machine.new_uuid())
    if identity is None:
        # Stored before the join: a retry must use the same id, or it would join as a new broker.
        storage.become(Identity(broker_id=None, cluster_id=None, directory_id=directory_id))
    return await _join(config, join_addr, storage, machine, directory_id, process, endpoints)


def _check_belongs(config: ServerConfig, identity: Identity) -> None:
    if None not in (identity.broker_id, config.broker_id) and (
        identity.broker_id != config.broker_id
    ):
        raise ConfigError(
            f"the data directory belongs to broker {identity.broker_id}, not to "
            f"{config.broker_id}; start with --id {identity.broker_id}, or choose another directory"
        )
    if identity.cluster_id is not None and not is_named(identity.cluster_id, config.cluster_id):
        raise ConfigError(
            f"the data directory belongs to cluster {identity.cluster_id}, not to "
            f"{config.cluster_id}; leave cluster_id out, or choose another directory"
        )


def _took_part(storage: Storage) -> bool:
    """Whether this broker ever knew a leader of the metadata group, or stores partitions."""
    return storage.votes.get(METADATA_GROUP.name)[0] != NO_EPOCH or bool(storage.find_logs())


def _bootstrap(
    config: ServerConfig,
    storage: Storage,
    machine: Machine,
    secret: ClusterSecret,
    may_bootstrap: bool,
) -> Identity:
    if not may_bootstrap:
        raise ConfigError(
            f"the data directory {config.data_dir} is empty; to bootstrap a new cluster, start "
            "with --bootstrap; to join one, with --join-addr HOST:PORT (a broker that lost its "
            "disk joins, and gets a new id)"
        )
    broker_id = _FIRST_ID if config.broker_id is None else BrokerId(config.broker_id)
    identity = Identity(
        broker_id=broker_id,
        cluster_id=new_cluster_id(config.cluster_id, machine.new_uuid()),
        directory_id=str(machine.new_uuid()),
        metadata_voters=(broker_id,),
        is_bootstrapping=True,
    )
    # Before the identity: a directory that belongs to a cluster has its secret.
    storage.write_secret(secret)
    storage.become(identity)
    return identity


async def _join(
    config: ServerConfig,
    join_addr: Endpoint,
    storage: Storage,
    machine: Machine,
    directory_id: str,
    process: str,
    endpoints: Endpoints,
) -> ClusterMembership:
    known = storage.identity
    broker_id = config.broker_id
    if broker_id is None and known is not None:
        broker_id = known.broker_id
    grant = await join_cluster(
        join_addr,
        JoinRequest(
            incarnation=directory_id,
            process=process,
            **asdict(endpoints),
            rack=config.rack,
            machine=config.machine,
            broker_id=broker_id,
            cluster_id=(known and known.cluster_id) or config.cluster_id,
        ),
        _join_key(config, storage, machine),
        machine,
        seconds_max=_JOIN_SECONDS_MAX,
    )
    reply = grant.reply
    try:
        image = decode_image(reply.image)
    except CorruptionError as error:
        raise ConfigError(
            f"cannot decode the join response of {join_addr} (join_addr): {error}"
        ) from None
    identity = Identity(
        broker_id=BrokerId(reply.broker_id),
        cluster_id=reply.cluster_id,
        directory_id=directory_id,
        metadata_voters=tuple(BrokerId(voter) for voter in reply.voters),
    )
    secret = storage.read_secret()
    if secret is None:
        # Before the identity: a directory that belongs to a cluster has its secret. One that has
        # it keeps it: it may be newer than that of the member.
        secret = ClusterSecret(grant.secret, grant.earlier_secret)
        storage.write_secret(secret)
    storage.become(identity)
    return _membership(identity, process, endpoints, secret, image, reply.epoch)


def _configured_secret(config: ServerConfig) -> ClusterSecret | None:
    """Raises ConfigError."""
    path = config.cluster_secret_file
    return None if path is None else read_secret_file(path)


def _join_key(config: ServerConfig, storage: Storage, machine: Machine) -> JoinKey | None:
    """The secret if the directory has it: of an earlier start, or put there by the operator; or
    the configured one, or a token. Raises ConfigError."""
    known = storage.read_secret() or _configured_secret(config)
    if known is not None:
        return join_key(known)
    if config.join_token_file:
        return read_join_token(config.join_token_file)
    text = machine.join_token()
    return join_token(text, JOIN_TOKEN_VARIABLE) if text else None


def _membership(
    identity: Identity,
    process: str,
    endpoints: Endpoints,
    secret: ClusterSecret,
    image: Image = EMPTY_IMAGE,
    epoch: int = 0,
) -> ClusterMembership:
    if identity.broker_id is None or identity.cluster_id is None:
        raise ConfigError("the data directory does not belong to a cluster yet")
    learners = () if identity.is_bootstrap_broker else (identity.broker_id,)
    voters = tuple(voter for voter in identity.metadata_voters if voter not in learners)
    return ClusterMembership(
        broker_id=identity.broker_id,
        cluster_id=identity.cluster_id,
        directory_id=identity.directory_id,
        process=process,
        endpoints=endpoints,
        metadata_members=Members(voters, learners),
        is_bootstrap_broker=identity.is_bootstrap_broker,
        image=image,
        epoch=epoch,
        secret=secret,
    )
