"""Registers this broker in its cluster at each start, and keeps the registration up to date.

Usually through the metadata leader. A broker that was down may not know the current addresses, the
current leader, or its last registration: then it uses the HTTP API of any member, which needs none
of these. So does a running broker that lost contact, since the leader sends nothing to a broker
that was removed.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import asdict, replace

from moldau.client.errors import ClientError, NotFoundError, RejectedError, UnavailableError
from moldau.control.metadata_store import MetadataStore
from moldau.metadata.commands import CreateCluster, RegisterBroker
from moldau.metadata.image import Image
from moldau.metadata.records import BrokerRegistered, MetadataRecord
from moldau.metadata.snapshot import decode_image
from moldau.model import log_events as events
from moldau.model.errors import ConfigError, CorruptionError, ErrorCode, MoldauError, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.topology import NO_BROKER, Endpoint, JoinReply, JoinRequest
from moldau.server.cluster_secret import join_key
from moldau.server.config.schema import ServerConfig
from moldau.server.join import ProvenRefusalError, ask_member
from moldau.server.machine import Machine
from moldau.server.membership import ClusterMembership

log = logging.getLogger(__name__)

_SUBMIT_SECONDS: Final = 3.0
"""Longer than an election usually takes."""
_REQUEST_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.2
_CHECK_SECONDS: Final = 1.0
_LOST_SECONDS: Final = 3.0
"""Longer than an election takes."""
_LACKING_SECONDS: Final = 10.0
"""Between attempts to register the machine, in an upgrade."""
_PERMANENT_CODES: Final = frozenset(
    {
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Permanent errors, the same from every member that proves to be one."""


class SupersededError(MoldauError):
    """Another process has registered as this broker, with a copy of its data directory."""


class Registration:
    """The registration of this start of the broker."""

    def __init__(
        self,
        config: ServerConfig,
        membership: ClusterMembership,
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
        self._membership = membership
        self._metadata = metadata
        self._machine = machine
        self._on_member_image = on_member_image
        self._on_epoch = on_epoch
        self._is_cut_off = is_cut_off
        self._on_removed = on_removed
        self.epoch = 0
        """0 until this start is registered."""
        self._is_overridden = False
        self._lacks_machine = False
        """A leader of an earlier version registered it, which knew nothing of machines."""
        self._lacking: tuple[BrokerId, ...] = ()
        """Other brokers whose machine the image here lacks: so it is after a restart from a
        snapshot of an earlier version."""
        self._leader: int = NO_BROKER
        """The metadata leader that is known to have the whole registration."""
        self._command = RegisterBroker(
            id=membership.broker_id,
            host=membership.endpoints.kafka.host,
            port=membership.endpoints.kafka.port,
            rack=config.rack,
            incarnation=membership.directory_id,
            process=membership.process,
            raft=membership.endpoints.raft,
            http=membership.endpoints.http,
            grpc=membership.endpoints.grpc,
            listeners=membership.endpoints.listeners,
            machine=config.machine,
        )

    # ---- at start

    async def register(self) -> None:
        """Returns when this broker's own image contains its registration. Raises ConfigError."""
        membership, metadata = self._membership, self._metadata
        if self._has_moved():
            await self._register_with_any_member()
        while True:
            try:
                if membership.is_bootstrap_broker and not metadata.image.cluster_id:
                    await metadata.submit(CreateCluster(cluster_id=membership.cluster_id))
                await self._submit()
                break
            except RefusedError as error:
                if not error.code.is_unavailable:
                    raise ConfigError(f"the cluster rejected this broker: {error}") from None
                # There is no metadata leader yet, or its disk is full.
                log.info("not registered yet, retrying: %s", error)
            await asyncio.sleep(_PAUSE_SECONDS)
            await self._register_with_any_member()
        self.check(metadata.image)
        self._leader = metadata.leader

    def _has_moved(self) -> bool:
        """Whether the cluster still knows an earlier address of this broker."""
        known = self._metadata.forecast().brokers.get(self._membership.broker_id)
        return known is not None and known.raft not in (None, self._membership.endpoints.raft)

    async def _register_with_any_member(self) -> None:
        try:
            for address in self._members():
                if await self._register_with(address):
                    break
        except ProvenRefusalError as error:
            raise ConfigError(f"the cluster rejected this broker: {error}") from None

    async def _submit(self) -> None:
        await self._metadata.submit(
            replace(self._command, lacking=self._lacking),
            seconds_max=_SUBMIT_SECONDS,
            on_decided=self._decided,
        )

    def _decided(self, records: list[MetadataRecord]) -> None:
        """Use the new epoch at once: peers reject older ones from now on."""
        for record in records:
            if isinstance(record, BrokerRegistered) and record.id == self._membership.broker_id:
                self._on_epoch(record.epoch)

    def check(self, image: Image) -> None:
        """Compare an image with this process. Raises SupersededError."""
        me = image.brokers.get(self._membership.broker_id)
        if me is None:
            return
        if self._command.machine is not None:
            others = (one for one in image.brokers.values() if one is not me)
            self._lacking = tuple(one.id for one in others if one.machine is None)
        if me.process == self._membership.process:
            self.epoch = max(self.epoch, me.epoch)
            self._is_overridden = False
            self._lacks_machine = me.machine != self._command.machine
        elif self.epoch and me.epoch > self.epoch:
            self._check_other_process(me.raft)

    def _check_other_process(self, raft: Endpoint | None) -> None:
        """Another process registered after this one. Raises SupersededError."""
        if raft != self._membership.endpoints.raft:
            raise SupersededError(
                f"another process runs as broker {self._membership.broker_id} at {raft}, with a "
                "copy of this data directory: only the one that was started last may continue"
            )
        # This process holds that address, so it was a delayed request of an earlier process.
        self._is_overridden = True

    # ---- while it runs

    async def run(self) -> None:
        """Run until cancelled: on lost contact, find out the reason from other members.

        Raises SupersededError.
        """
        lost_seconds = lacking_seconds = 0.0
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            if self._is_overridden:
                log.info(
                    "a delayed request registered an earlier process of this broker: "
                    "registering again"
                )
                await self._renew()
            leader = self._metadata.leader
            # It may have started from a snapshot of an earlier version, without the machine.
            is_new = leader not in (NO_BROKER, self._leader)
            is_lacking = self._lacks_machine or bool(self._lacking) or is_new
            lacking_seconds = lacking_seconds + _CHECK_SECONDS if is_lacking else 0.0
            if lacking_seconds >= _LACKING_SECONDS:
                lacking_seconds = 0.0
                if await self._renew() and leader != NO_BROKER:
                    self._leader = leader
            lost_seconds = lost_seconds + _CHECK_SECONDS if self._is_cut_off() else 0.0
            if lost_seconds >= _LOST_SECONDS:
                lost_seconds = 0.0
                for address in self._members():
                    if await self._check_with(address):
                        break

    async def _renew(self) -> bool:
        """Whether the metadata has the registration of this process. Where it had it already,
        nothing is written."""
        try:
            await self._submit()
        except RefusedError as error:
            log.debug("cannot register now, will retry: %s", error)
            return False
        return True

    async def _check_with(self, address: Endpoint) -> bool:
        """Whether a member returned the state of this broker."""
        try:
            image = decode_image((await self._ask(address, is_query=True)).image)
        except (NotFoundError, RejectedError) as error:
            # It was removed, which the registration will show.
            log.debug("%s knows nothing of this broker: %s", address, error)
        except (ClientError, CorruptionError) as error:
            log.debug("cannot get the state of this broker from %s: %s", address, error)
            return False
        else:
            me = image.brokers.get(self._membership.broker_id)
            if self._is_newer(image) and me is not None and me.epoch > self.epoch:
                self._check_other_process(me.raft)
        try:
            return await self._register_with(address)
        except ProvenRefusalError as error:
            log.warning(
                "the member at %s rejected this broker: %s",
                address,
                error,
                extra=events.MEMBER_REJECTED_BROKER(),
            )
            if error.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                self._on_removed()
            return True

    def _is_newer(self, image: Image) -> bool:
        return (
            image.cluster_id == self._membership.cluster_id
            and image.version >= self._metadata.image.version
        )

    # ---- requests to members

    async def _ask(self, address: Endpoint, *, is_query: bool) -> JoinReply:
        """Raises ClientError."""
        membership = self._membership
        request = JoinRequest(
            **asdict(membership.endpoints),
            incarnation=membership.directory_id,
            process=membership.process,
            rack=self._config.rack,
            machine=self._config.machine,
            broker_id=membership.broker_id,
            cluster_id=membership.cluster_id,
            is_query=is_query,
        )
        member = self._machine.member(address, _REQUEST_SECONDS)
        key = join_key(membership.secret)
        return (await ask_member(member, request, key, self._machine)).reply

    async def _register_with(self, address: Endpoint) -> bool:
        """Whether a member accepted the registration. Raises ProvenRefusalError if permanent."""
        try:
            reply = await self._ask(address, is_query=False)
            image = decode_image(reply.image)
        except (UnavailableError, CorruptionError) as error:
            log.debug("%s is temporarily unavailable: %s", address, error)
            return False
        except RejectedError as error:
            if isinstance(error, ProvenRefusalError) and error.code in _PERMANENT_CODES:
                raise
            # It may belong to another cluster, or be no broker: what it says ends nothing.
            log.warning(
                "the member at %s rejected this broker: %s",
                address,
                error,
                extra=events.MEMBER_REJECTED_BROKER(),
            )
            return False
        except ClientError as error:
            log.debug("cannot reach %s: %s", address, error)
            return False
        self.check(image)
        self._on_epoch(reply.epoch)
        self._on_member_image(image)
        return True

    def _members(self) -> Iterable[Endpoint]:
        if self._config.join_addr is not None:
            yield self._config.join_addr
        for broker in self._metadata.forecast().brokers.values():
            if broker.http is not None and broker.id != self._membership.broker_id:
                yield broker.http
