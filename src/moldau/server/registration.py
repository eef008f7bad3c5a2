"""Owns this broker's entry in its cluster's list: made at each start, looked after until the end.

Over the link to the metadata leader, as a rule. A broker that was away may know nobody's address
any more, or not the broker that leads by now, or have forgotten its last registration: then it asks
a member over HTTP, which needs none of that. So does one that runs and is cut off, since whoever
was removed from a group hears nothing from it any more.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from moldau.client.errors import ClientError, RejectedError, UnavailableError
from moldau.control.metadata_store import MetadataStore
from moldau.metadata.commands import CreateCluster, RegisterBroker
from moldau.metadata.image import Image
from moldau.metadata.records import BrokerRegistered, MetadataRecord
from moldau.metadata.snapshot import decode_image
from moldau.model.errors import ConfigError, CorruptionError, ErrorCode, MoldauError, RefusedError
from moldau.model.topology import Endpoint, JoinRequest, Topology
from moldau.server.config.schema import Address, ServerConfig
from moldau.server.machine import Machine
from moldau.server.membership import ClusterMembership

log = logging.getLogger(__name__)

_SUBMIT_SECONDS: Final = 3.0
"""Longer than an election takes, as a rule."""
_ASK_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 1.0
_LOST_SECONDS: Final = 3.0
"""Longer than an election takes."""
_PASSING: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR})
"""No leader of the metadata answers yet, or its disk is full just now."""
_FINAL: Final = frozenset(
    {
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""What every member would say, and for ever."""


class SupersededError(MoldauError):
    """Another process has registered as this broker, from a copy of its data directory."""


class Registration:
    """One start of a broker, as its cluster knows it."""

    def __init__(
        self,
        config: ServerConfig,
        entry: ClusterMembership,
        metadata: MetadataStore,
        machine: Machine,
        *,
        on_member_image: Callable[[Image], None],
        on_epoch: Callable[[int], None],
        is_cut_off: Callable[[], bool],
        on_removed: Callable[[], None],
    ) -> None:
        """`on_member_image` gets an image, `on_epoch` of a new registration, as soon as there is
        one."""
        self._config = config
        self._entry = entry
        self._metadata = metadata
        self._machine = machine
        self._on_told = on_member_image
        self._on_epoch = on_epoch
        self._is_cut_off = is_cut_off
        self._on_removed = on_removed
        self.epoch = 0
        """0 until it is made."""
        self._is_overridden = False
        self._command = RegisterBroker(
            id=entry.broker_id,
            host=entry.endpoints.kafka.host,
            port=entry.endpoints.kafka.port,
            rack=config.rack,
            incarnation=entry.directory_id,
            process=entry.process,
            raft=entry.endpoints.raft,
            http=entry.endpoints.http,
            grpc=entry.endpoints.grpc,
        )

    # ---- at start

    async def make(self) -> None:
        """Returns when this broker's own image has it as it is now. Raises ConfigError."""
        entry, metadata = self._entry, self._metadata
        if self._has_moved():
            await self._introduce_anywhere()
        while True:
            try:
                if entry.is_bootstrap_broker and not metadata.image.cluster_id:
                    await metadata.submit(CreateCluster(cluster_id=entry.cluster_id))
                await self._submit()
                break
            except RefusedError as error:
                if error.code not in _PASSING:
                    raise ConfigError(f"the cluster does not take this broker: {error}") from None
                log.info("waiting for the cluster: %s", error)
            await asyncio.sleep(_PAUSE_SECONDS)
            await self._introduce_anywhere()
        self.check(metadata.image)

    def _has_moved(self) -> bool:
        """Whether the leader would answer where this broker was before."""
        known = self._metadata.forecast().brokers.get(self._entry.broker_id)
        return known is not None and known.raft not in (None, self._entry.endpoints.raft)

    async def _introduce_anywhere(self) -> None:
        """Raises ConfigError."""
        try:
            for address in self._members():
                if await self._introduce(address):
                    break
        except RejectedError as error:
            raise ConfigError(f"the cluster does not take this broker: {error}") from None

    async def _submit(self) -> None:
        await self._metadata.submit(
            self._command, seconds_max=_SUBMIT_SECONDS, on_decided=self._decided
        )

    def _decided(self, records: list[MetadataRecord]) -> None:
        """From now on the peers refuse earlier registrations, and the image comes through them."""
        for record in records:
            if isinstance(record, BrokerRegistered):
                self._on_epoch(record.epoch)

    def check(self, image: Image) -> None:
        """Look what an image says of this broker. Raises SupersededError."""
        me = image.brokers.get(self._entry.broker_id)
        if me is None:
            return
        if me.process == self._entry.process:
            self.epoch = max(self.epoch, me.epoch)
            self._is_overridden = False
        elif self.epoch and me.epoch > self.epoch:
            self._note_other(me.raft)

    def _note_other(self, raft: Endpoint | None) -> None:
        """Another process registered after this one. Raises SupersededError."""
        if raft != self._entry.endpoints.raft:
            raise SupersededError(
                f"another process runs as broker {self._entry.broker_id} at {raft}, from a copy of "
                "this data directory: only the one that was started last may go on"
            )
        # This process holds that address: a request of an earlier one was carried out late.
        self._is_overridden = True

    # ---- while it runs

    async def keep(self) -> None:
        """Until cancelled: find out why, if the cluster is not heard any more.

        Raises SupersededError.
        """
        lost_seconds = 0.0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._is_overridden:
                await self._renew()
            lost_seconds = lost_seconds + _LOOK_SECONDS if self._is_cut_off() else 0.0
            if lost_seconds >= _LOST_SECONDS:
                lost_seconds = 0.0
                for address in self._members():
                    if await self._look_at(address):
                        break

    async def _renew(self) -> None:
        log.info("an earlier process of this broker was registered late: registering again")
        try:
            await self._submit()
        except RefusedError as error:
            log.debug("not now: %s", error)

    async def _look_at(self, address: Address) -> bool:
        """Whether a member could tell how this broker stands."""
        try:
            topology = await self._machine.member(address, _ASK_SECONDS).topology()
        except ClientError as error:
            log.debug("%s does not tell: %s", address, error)
            return False
        if self._is_newer(topology):
            for broker in topology.brokers:
                if broker.id == self._entry.broker_id and broker.epoch > self.epoch:
                    self._note_other(broker.raft)
        try:
            return await self._introduce(address)
        except RejectedError as error:
            log.warning("%s does not know this broker any more: %s", address, error)
            if error.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                self._on_removed()
            return True

    def _is_newer(self, topology: Topology) -> bool:
        return (
            topology.cluster_id == self._entry.cluster_id
            and topology.version >= self._metadata.image.version
        )

    # ---- asking members

    async def _introduce(self, address: Address) -> bool:
        """Whether a member took note of this broker. Raises RejectedError if none ever will."""
        entry, endpoints = self._entry, self._entry.endpoints
        request = JoinRequest(
            incarnation=entry.directory_id,
            process=entry.process,
            kafka=endpoints.kafka,
            raft=endpoints.raft,
            http=endpoints.http,
            grpc=endpoints.grpc,
            rack=self._config.rack,
            broker_id=entry.broker_id,
            cluster_id=entry.cluster_id,
        )
        try:
            reply = await self._machine.member(address, _ASK_SECONDS).join(request)
            image = decode_image(reply.image)
        except (UnavailableError, CorruptionError) as error:
            log.debug("%s cannot say now: %s", address, error)
            return False
        except RejectedError as error:
            if error.code in _FINAL:
                raise
            # Perhaps of another cluster: its address was a member's once.
            log.warning("%s does not take this broker: %s", address, error)
            return False
        except ClientError as error:
            log.debug("%s does not answer: %s", address, error)
            return False
        self.check(image)
        self._on_epoch(reply.epoch)
        self._on_told(image)
        return True

    def _members(self) -> Iterable[Address]:
        if self._config.join_addr is not None:
            yield self._config.join_addr
        for broker in self._metadata.forecast().brokers.values():
            if broker.http is not None and broker.id != self._entry.broker_id:
                yield Address(broker.http.host, broker.http.port)
