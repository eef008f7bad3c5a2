"""Owns how a broker makes itself known to its cluster at each start.

Over the link to the metadata leader, as a rule. A broker that was away for long may know nobody's
address any more, or have forgotten its last registration: then it asks a member over HTTP, which
needs neither.
"""

import logging
from collections.abc import Iterable
from typing import Final

from moldau.metadata.commands import CreateCluster, RegisterBroker
from moldau.metadata.image import Image
from moldau.model.errors import ConfigError, ErrorCode, RefusedError
from moldau.model.topology import JoinRequest
from moldau.server.config.schema import Address, ServerConfig
from moldau.server.entry import Entry
from moldau.server.join import join_cluster
from moldau.service.metadata_store import MetadataStore

log = logging.getLogger(__name__)

_SUBMIT_SECONDS: Final = 5.0
_ASK_SECONDS: Final = 2.0


async def register(config: ServerConfig, entry: Entry, metadata: MetadataStore) -> None:
    """Returns when this broker's own image has it as it is now. Raises ConfigError."""
    command = RegisterBroker(
        id=entry.broker_id,
        host=entry.endpoints.kafka.host,
        port=entry.endpoints.kafka.port,
        rack=config.rack,
        incarnation=entry.directory_id,
        process=entry.process,
        raft=entry.endpoints.raft,
        http=entry.endpoints.http,
    )
    while True:
        try:
            if entry.is_founder and not metadata.image.cluster_id:
                await metadata.submit(CreateCluster(cluster_id=entry.cluster_id))
            await metadata.submit(command, seconds_max=_SUBMIT_SECONDS)
            return
        except RefusedError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                raise ConfigError(f"the cluster does not take this broker: {error}") from None
        log.info("waiting for the cluster: no majority of its brokers answers yet")
        await _ask_members(config, entry, metadata)


async def _ask_members(config: ServerConfig, entry: Entry, metadata: MetadataStore) -> None:
    image = metadata.forecast()
    request = JoinRequest(
        incarnation=entry.directory_id,
        process=entry.process,
        kafka=entry.endpoints.kafka,
        raft=entry.endpoints.raft,
        http=entry.endpoints.http,
        rack=config.rack,
        broker_id=entry.broker_id,
        cluster_id=entry.cluster_id,
    )
    for address in _members(config, entry, image):
        try:
            await join_cluster(address, request, seconds_max=_ASK_SECONDS)
        except ConfigError as error:
            log.debug("%s: %s", address, error)
        else:
            return


def _members(config: ServerConfig, entry: Entry, image: Image) -> Iterable[Address]:
    if config.join_addr is not None:
        yield config.join_addr
    for broker in image.brokers.values():
        if broker.http is not None and broker.id != entry.broker_id:
            yield Address(broker.http.host, broker.http.port)
