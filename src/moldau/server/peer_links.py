"""Owns which brokers this one talks to: those of the newest image of the cluster that it saw.

Its own image lags behind when it was away: the leader, of all brokers, may not be in it yet. So
what members told over HTTP counts too, until this start is registered.
"""

from moldau.control.metadata_store import MetadataStore
from moldau.metadata.broker_rules import peer_refusal
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.net.peers.handshake import Hello
from moldau.replica.driver import RaftDriver
from moldau.replica.transport import Transport
from moldau.server.membership import ClusterMembership


class PeerLinks:
    """Call `attach` before the transport is started."""

    _transport: Transport
    _driver: RaftDriver
    _metadata: MetadataStore

    def __init__(self, entry: ClusterMembership) -> None:
        self._entry = entry
        self._told = EMPTY_IMAGE

    def attach(self, transport: Transport, driver: RaftDriver, metadata: MetadataStore) -> None:
        self._transport, self._driver, self._metadata = transport, driver, metadata
        # What the log holds beyond its committed part is as good a guess as any, for the moment.
        told = self._entry.image
        self._told = told if told.cluster_id else metadata.forecast()

    @property
    def _image(self) -> Image:
        return max(self._metadata.image, self._told, key=lambda known: known.version)

    def on_member_image(self, image: Image) -> None:
        """A member was asked over HTTP. An empty one: what it told counts no more."""
        self._told = image
        self.follow()

    def is_cut_off(self) -> bool:
        """Whether nothing of the metadata group is heard, or can be answered."""
        leader = self._metadata.leader
        if leader == self._entry.broker_id:
            return False
        link = self._transport.links.get(leader)
        return link is None or not link.is_connected or not self._metadata.has_recent_leader

    def refusal(self, hello: Hello) -> str | None:
        """Why somebody who calls is not let in; None if they are."""
        return peer_refusal(
            self._image,
            cluster_id=hello.cluster_id,
            broker_id=hello.sender,
            incarnation=hello.incarnation,
            epoch=hello.epoch,
        )

    def follow(self) -> None:
        """Have a link to each broker of the image, and to nobody else."""
        transport, image = self._transport, self._image
        for broker in image.brokers.values():
            if broker.id != self._entry.broker_id and broker.raft is not None:
                self._driver.add_peer(broker.id, (broker.raft.host, broker.raft.port))
        for peer in list(transport.links):
            if peer not in image.brokers:
                self._driver.remove_peer(peer)
        transport.recheck()
        me = image.brokers.get(self._entry.broker_id)
        if me is not None:
            # An earlier start's is renewed in a moment, to the next one; and a newer one than they
            # know is believed by peers, who would close the connection as soon as they hear of it.
            epoch = me.epoch if me.process == self._entry.process else me.epoch + 1
            if epoch > transport.epoch:
                transport.set_epoch(epoch)
