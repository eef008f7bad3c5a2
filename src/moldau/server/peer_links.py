"""Maintains links to the other brokers, those of the newest known image of the cluster.

After a restart the broker's own image may be outdated, and may not even contain the leader. So an
image received from a member over HTTP is used too, until this start is registered.

A broker that returns with another address says so over HTTP, too. This broker answers it there at
once: to register the address takes a majority, and that may need the broker itself.
"""

from moldau.control.metadata_store import MetadataStore
from moldau.metadata.broker_rules import peer_refusal
from moldau.metadata.image import EMPTY_IMAGE, Broker, Image
from moldau.model.ids import BrokerId
from moldau.model.topology import Endpoint, JoinRequest
from moldau.net.peers.handshake import Hello
from moldau.replica.driver import RaftDriver
from moldau.replica.transport import Transport
from moldau.server.membership import ClusterMembership


class PeerLinks:
    """Call `attach` before the transport is started."""

    _transport: Transport
    _driver: RaftDriver
    _metadata: MetadataStore

    def __init__(self, membership: ClusterMembership) -> None:
        self._membership = membership
        self._member_image = EMPTY_IMAGE
        self._moved: dict[BrokerId, tuple[int, Endpoint]] = {}
        """Addresses that brokers proved to be theirs, until the next registration after that of
        this epoch is known."""

    def attach(self, transport: Transport, driver: RaftDriver, metadata: MetadataStore) -> None:
        self._transport, self._driver, self._metadata = transport, driver, metadata
        # Without one, start with the image that includes uncommitted entries of the log.
        image = self._membership.image
        self._member_image = image if image.cluster_id else metadata.forecast()

    @property
    def _image(self) -> Image:
        return max(self._metadata.image, self._member_image, key=lambda known: known.version)

    def on_member_image(self, image: Image) -> None:
        """Use an image that a member returned over HTTP; an empty one clears it."""
        self._member_image = image
        self.follow()

    def on_return(self, request: JoinRequest) -> None:
        """A broker proved the secret of the cluster, and wants to register."""
        known = self._image.brokers.get(BrokerId(request.broker_id or 0))
        if known is None or known.incarnation != request.incarnation:
            return
        self._moved[known.id] = (known.epoch, request.raft)
        self.follow()

    def is_cut_off(self) -> bool:
        """Whether this broker has lost contact with the metadata leader."""
        leader = self._metadata.leader
        if leader == self._membership.broker_id:
            return False
        link = self._transport.links.get(leader)
        return link is None or not link.is_connected or not self._metadata.has_recent_leader

    def refusal(self, hello: Hello) -> str | None:
        """Why a connecting broker is rejected; None if it is accepted.

        The listener has compared the ids of the clusters. That of the image is not compared: right
        after a recovery it may be the one from before.
        """
        return peer_refusal(
            self._image,
            broker_id=hello.sender,
            incarnation=hello.incarnation,
            epoch=hello.epoch,
        )

    def follow(self) -> None:
        """Link to each broker of the image, and drop all other links."""
        transport, image = self._transport, self._image
        for broker in image.brokers.values():
            if broker.id != self._membership.broker_id and broker.raft is not None:
                self._driver.add_peer(broker.id, self._address_of(broker, broker.raft))
        for peer in list(transport.links):
            if peer not in image.brokers:
                self._driver.remove_peer(peer)
        transport.recheck()
        me = image.brokers.get(self._membership.broker_id)
        if me is not None:
            # The epoch of an earlier start will be incremented by this one's registration. Peers
            # accept a newer epoch than they know, but would close connections with an older one.
            epoch = me.epoch if me.process == self._membership.process else me.epoch + 1
            if epoch > transport.epoch:
                transport.set_epoch(epoch)

    def _address_of(self, broker: Broker, registered: Endpoint) -> tuple[str, int]:
        epoch, raft = self._moved.get(broker.id, (-1, registered))
        if epoch != broker.epoch:
            self._moved.pop(broker.id, None)
            raft = registered
        return raft.host, raft.port
