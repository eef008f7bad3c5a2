"""Collects what /metrics reads from the parts of a broker."""

from collections.abc import Callable, Iterator

from moldau.api.metric_sources import MetricSources, OneListener, PeerNumbers
from moldau.api.overview.sampler import OverviewSampler
from moldau.api.quotas import Quotas
from moldau.control.peer_clocks import PeerClocks
from moldau.data.cleaner import Cleaner
from moldau.data.scrub import Scrubber
from moldau.model.ids import BrokerId
from moldau.net.peers.methods import PeerMethod
from moldau.replica.driver import RaftDriver
from moldau.replica.flusher import Flusher
from moldau.server.build_authentication import Authentication
from moldau.server.build_coordination import CoordinationServices
from moldau.server.certificates import Certificates
from moldau.server.kafka_server import KafkaServer
from moldau.server.machine import LoopObserver


def build_metric_sources(
    kafka: KafkaServer,
    certificates: Certificates,
    authentication: Authentication,
    quotas: Quotas,
    loop_watch: LoopObserver,
    parts: CoordinationServices,
    driver: RaftDriver,
    *,
    flusher: Flusher,
    disk_reserve_bytes: int,
    cleaner: Callable[[], Cleaner | None],
    scrub: Callable[[], Scrubber | None],
    leaderships: Callable[[], int],
    overview: OverviewSampler,
    http_connections: Callable[[], int],
) -> MetricSources:
    transport = parts.transport

    def connected() -> list[BrokerId]:
        return [peer for peer, link in transport.links.items() if link.is_connected]

    clocks = PeerClocks(clock=parts.clock, caller=transport, peers=connected)
    transport.rpc.serve(PeerMethod.READ_CLOCK, clocks.on_request)

    def peers() -> Iterator[PeerNumbers]:
        readings = clocks.readings()
        for peer, link in sorted(transport.links.items()):
            received = transport.listener.received_bytes[peer]
            yield PeerNumbers(
                peer, link.is_connected, link.sent_bytes, received, readings.get(peer)
            )

    def listeners() -> Iterator[OneListener]:
        yield from kafka.by_listener()
        peer = transport.listener
        yield OneListener("peers", "peers", peer.connection_count, peer.accepted_total)

    sources = MetricSources(
        requests_by_api=kafka.requests_by_api,
        seconds_by_api=kafka.seconds_by_api,
        queue_seconds=kafka.queue_seconds,
        listener=kafka,
        listeners=listeners,
        peers=peers,
        raft=driver.counts,
        ended_transactions=parts.ended_transactions,
        certificates=certificates.expiries,
        logins=authentication.logins,
        quotas=quotas,
        flusher=flusher,
        disk_reserve_bytes=disk_reserve_bytes,
        cleaner=lambda: None if (found := cleaner()) is None else found.metrics,
        leaderships=leaderships,
        slow_turns=loop_watch.numbers,
        scrub=lambda: None if (found := scrub()) is None else found.metrics,
    )
    overview.collector.attach(sources, http_connections)
    return sources
