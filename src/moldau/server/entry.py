"""Owns how a broker comes to its place in a cluster: by founding it, joining it, or returning.

The data directory decides. A new one founds a cluster, or joins the one that `join_addr` names; one
that belongs to a cluster returns there, whatever it is told. What was decided is on the disk before
anything is done in its name.
"""

import uuid
from typing import Final

from msgspec import Struct

from moldau.log.datadir import Identity
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.snapshot import decode_image
from moldau.model.errors import ConfigError, CorruptionError
from moldau.model.ids import BrokerId
from moldau.model.topology import Endpoint, JoinRequest
from moldau.raft.membership import Members
from moldau.server.config.schema import Address, ServerConfig
from moldau.server.join import join_cluster
from moldau.server.storage import Storage

_JOIN_SECONDS_MAX: Final = 120.0
_FIRST_ID: Final = BrokerId(1)


class Endpoints(Struct, frozen=True, kw_only=True):
    """Where this broker tells others that it is reached."""

    kafka: Endpoint
    raft: Endpoint
    http: Endpoint
    grpc: Endpoint | None = None


class Entry(Struct, frozen=True, kw_only=True):
    """A broker's place in its cluster."""

    broker_id: BrokerId
    cluster_id: str
    directory_id: str
    process: str
    endpoints: Endpoints
    metadata_members: Members
    """Of the metadata group, for a log that does not say."""
    is_founder: bool
    image: Image
    """What a member said about the cluster; empty unless this broker has just joined."""
    epoch: int
    """Of the registration, as far as it is known."""


async def enter_cluster(
    config: ServerConfig, storage: Storage, endpoints: Endpoints, *, is_log_empty: bool
) -> Entry:
    """Found, join or return. Raises ConfigError, CorruptionError, StorageError."""
    identity = storage.identity
    process = uuid.uuid4().hex
    if identity is not None:
        _check_belongs(config, identity)
    is_member = identity is not None and identity.cluster_id is not None
    if identity is not None and is_member and (identity.is_founder or not is_log_empty):
        if is_log_empty and storage.find_logs():
            # Founding it once more would make strays of all of them.
            raise CorruptionError(
                "the metadata log is missing although there are logs of topics: restore it from a "
                "backup; without it this broker cannot know what they are"
            )
        return _entry(identity, process, endpoints)
    if config.join_addr is None:
        if identity is None:
            return _entry(_found(config, storage), process, endpoints)
        raise ConfigError(
            "the data directory was made to join a cluster, and has not heard of it yet; "
            "start it with --join-addr, or choose another directory"
        )
    directory_id = identity.directory_id if identity is not None else str(uuid.uuid4())
    if identity is None:
        # The cluster remembers it: a second try must not become a second broker.
        storage.become(Identity(broker_id=None, cluster_id=None, directory_id=directory_id))
    return await _join(config, config.join_addr, storage, directory_id, process, endpoints)


def _check_belongs(config: ServerConfig, identity: Identity) -> None:
    if None not in (identity.broker_id, config.broker_id) and (
        identity.broker_id != config.broker_id
    ):
        raise ConfigError(
            f"the data directory belongs to broker {identity.broker_id}, not to "
            f"{config.broker_id}; start with --id {identity.broker_id}, or choose another directory"
        )
    if identity.cluster_id is not None and config.cluster_id not in (None, identity.cluster_id):
        raise ConfigError(
            f"the data directory belongs to cluster {identity.cluster_id}, not to "
            f"{config.cluster_id}; leave cluster_id out, or choose another directory"
        )


def _found(config: ServerConfig, storage: Storage) -> Identity:
    broker_id = _FIRST_ID if config.broker_id is None else BrokerId(config.broker_id)
    identity = Identity(
        broker_id=broker_id,
        cluster_id=config.cluster_id or str(uuid.uuid4()),
        directory_id=str(uuid.uuid4()),
        metadata_voters=(broker_id,),
    )
    storage.become(identity)
    return identity


async def _join(
    config: ServerConfig,
    join_addr: Address,
    storage: Storage,
    directory_id: str,
    process: str,
    endpoints: Endpoints,
) -> Entry:
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
            cluster_id=config.cluster_id
            if known is None
            else known.cluster_id or config.cluster_id,
        ),
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
) -> Entry:
    if identity.broker_id is None or identity.cluster_id is None:
        raise ConfigError("the data directory does not belong to a cluster yet")
    learners = () if identity.is_founder else (identity.broker_id,)
    voters = tuple(voter for voter in identity.metadata_voters if voter not in learners)
    return Entry(
        broker_id=identity.broker_id,
        cluster_id=identity.cluster_id,
        directory_id=identity.directory_id,
        process=process,
        endpoints=endpoints,
        metadata_members=Members(voters, learners),
        is_founder=identity.is_founder,
        image=image,
        epoch=epoch,
    )
