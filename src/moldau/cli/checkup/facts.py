"""What `moldau doctor` has learnt of a cluster; no judgement."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.model.broker_report import BrokerReport, IdleGroup
    from moldau.model.topology import Topology, TopologyBroker


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """The clock of a broker against the one of this machine: ahead by this, give or take."""

    ahead_ms: float
    uncertain_ms: float
    """Half of the round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFault:
    """Why one of a broker's ports cannot be used from here."""

    port: str
    """`kafka`, `grpc`, `http` or `raft`."""
    address: str
    reason: str

    @property
    def timed_out(self) -> bool:
        return "timed out" in self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """One broker. `report` is None if it gave none, for the reason in `no_report`."""

    broker: "TopologyBroker"
    faults: tuple[PortFault, ...] = ()
    not_ready: tuple[str, ...] = ()
    report: "BrokerReport | None" = None
    no_report: str = ""
    clock: ClockReading | None = None

    @property
    def hangs(self) -> bool:
        """Its machine accepts connections, and its process answers none."""
        silent = {fault.port for fault in self.faults if fault.timed_out}
        return {"kafka", "http"} <= silent and "raft" not in silent


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckGroup:
    """A group, and how long the oldest record that it has not processed is known to wait."""

    group: "IdleGroup"
    waits_longer_than_ms: int
    """0: unknown, nothing is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The cluster, as seen from this machine."""

    topology: "Topology"
    brokers: tuple[BrokerFacts, ...]
    now_s: float
    other_clusters: Mapping[str, str] = field(default_factory=dict)
    """Addresses that were given, and the id of the other cluster to which each belongs."""
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Addresses that were given and do not respond, and why."""
    stuck_groups: tuple[StuckGroup, ...] = ()
    groups_unchecked: int = 0
