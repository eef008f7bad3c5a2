"""Owns how a broker comes to its place in a cluster: by founding it, joining it, or returning.

The data directory decides. One that belongs to a cluster returns there, whatever it is told. An
empty one joins the cluster that `join_addr` names, or founds one if it is told to: a broker that
lost its disk looks like a new one, and must not found its cluster a second time. What was decided
is on the disk before anything is done in its name.

A cluster's id ends with a random number, so that no configuration can make the same one again.
"""

from typing import Final

from msgspec import Struct

from moldau.log.datadir import Identity
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.snapshot import decode_image
from moldau.model.cluster_ids import cluster_id_of, is_named
from moldau.model.errors import ConfigError, CorruptionError
from moldau.model.ids import NO_EPOCH, BrokerId
from moldau.model.topology import Endpoint, JoinRequest
from moldau.raft.membership import Members
from moldau.replica.peer_codec import METADATA_GROUP
from moldau.server.config.schema import Address, ServerConfig
from moldau.server.join import join_cluster
from moldau.server.machine import Machine
from moldau.server.storage import Storage

_JOIN_SECONDS_MAX: Final = 120.0
_FIRST_ID: Final = BrokerId(1)


class Endpoints(Struct, frozen=True, kw_only=True):
    """Where this broker tells others that it is reached."""

    kafka: Endpoint
    raft: Endpoint
    http: Endpoint
    grpc: Endpoint | None = None


class ClusterMembership(Struct, frozen=True, kw_only=True):
    """A broker's place in its cluster."""

    broker_id: BrokerId
    cluster_id: str
    directory_id: str
    process: str
    endpoints: Endpoints
    metadata_members: Members
    """Of the metadata group, for a log that does not say."""
    is_bootstrap_broker: bool
    image: Image
    """What a member said about the cluster; empty unless this broker has just joined."""
    epoch: int
    """Of the registration, as far as it is known."""


async def resolve_membership(
    config: ServerConfig,
    storage: Storage,
    endpoints: Endpoints,
    machine: Machine,
    *,
    is_log_empty: bool,
) -> ClusterMembership:
    """Found, join or return. Raises ConfigError, CorruptionError, StorageError."""
    identity = storage.identity
    process = machine.new_uuid().hex
    if identity is not None:
        _check_belongs(config, identity)
        if identity.cluster_id is not None and not is_log_empty:
            return _entry(identity, process, endpoints)
        if identity.is_bootstrapping and not storage.find_logs():
            # It was killed before anybody heard of its cluster: it goes on with founding it.
            return _entry(identity, process, endpoints)
    if config.join_addr is None:
        if identity is None:
            return _entry(_found(config, storage, machine), process, endpoints)
        if _took_part(storage):
            raise CorruptionError(
                "the folder metadata is missing in the data directory, or empty, although this "
                f"broker is a member of cluster {identity.cluster_id}: nothing was changed; start "
                "it with --join-addr of another member to learn it again, or restore it from a "
                "backup"
            )
        raise ConfigError(
            "the data directory was made to join a cluster, and has not heard of it yet; "
            "start it with --join-addr, or choose another directory"
        )
    directory_id = identity.directory_id if identity is not None else str(machine.new_uuid())
    if identity is None:
        # The cluster remembers it: a second try must not become a second broker.
        storage.become(Identity(broker_id=None, cluster_id=None, directory_id=directory_id))
    return await _join(config, config.join_addr, storage, machine, directory_id, process, endpoints)


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
    """Whether this broker ever heard of a leader of the metadata group, was one, or has topics."""
    return storage.votes.get(METADATA_GROUP.name)[0] != NO_EPOCH or bool(storage.find_logs())


def _found(config: ServerConfig, storage: Storage, machine: Machine) -> Identity:
    if not config.bootstrap:
        raise ConfigError(
            f"the data directory {config.data_dir} is empty; to found a cluster, start with "
            "--bootstrap; to join one, with --join-addr HOST:PORT (a broker that lost its disk "
            "joins, and gets a new number)"
        )
    broker_id = _FIRST_ID if config.broker_id is None else BrokerId(config.broker_id)
    identity = Identity(
        broker_id=broker_id,
        cluster_id=_new_cluster_id(config.cluster_id, machine),
        directory_id=str(machine.new_uuid()),
        metadata_voters=(broker_id,),
        is_bootstrapping=True,
    )
    storage.become(identity)
    return identity


def _new_cluster_id(name: str | None, machine: Machine) -> str:
    chance = machine.new_uuid()
    return str(chance) if name is None else cluster_id_of(name, chance.hex[:16])


async def _join(
    config: ServerConfig,
    join_addr: Address,
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
    reply = await join_cluster(
        join_addr,
        JoinRequest(
            incarnation=directory_id,
            process=process,
            kafka=endpoints.kafka,
            raft=endpoints.raft,
            http=endpoints.http,
            grpc=endpoints.grpc,
            rack=config.rack,
            broker_id=broker_id,
            cluster_id=(known and known.cluster_id) or config.cluster_id,
        ),
        machine,
        seconds_max=_JOIN_SECONDS_MAX,
    )
    try:
        image = decode_image(reply.image)
    except CorruptionError as error:
        raise ConfigError(
            f"what {join_addr} (join_addr) says of its cluster cannot be read: {error}"
        ) from None
    identity = Identity(
        broker_id=BrokerId(reply.broker_id),
        cluster_id=reply.cluster_id,
        directory_id=directory_id,
        metadata_voters=tuple(BrokerId(voter) for voter in reply.voters),
    )
    storage.become(identity)
    return _entry(identity, process, endpoints, image, reply.epoch)


def _entry(
    identity: Identity,
    process: str,
    endpoints: Endpoints,
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
    )
