"""Mistakes of the consensus core."""

from typing import Any

from moldau.raft.core import RaftCore
from moldau.replica import driver
from sim.mutants import Mutant, Patch, cores

ELECTIONS = {"kill": 5.0, "isolate": 6.0, "cut": 8.0, "pause": 8.0}
DIVERGENCE = {"isolate": 4.0, "cut": 5.0, "stall": 4.0, "kill": 8.0}
POWER = {"power": 4.0, "power-in-write": 4.0, "stall": 5.0, "blackout": 12.0}
LATE = {"slow-network": 6.0, "break": 4.0, "isolate": 6.0, "stop": 8.0}


def _core(core: type[RaftCore], faults: dict[str, float], **plan: Any) -> Mutant:
    def patches() -> list[Patch]:
        return [(driver, "RaftCore", core)]

    return Mutant(
        name=core.__name__,
        layer="raft",
        about=(core.__doc__ or "").strip(),
        patches=patches,
        faults=faults,
        plan=plan,
    )


MUTANTS = (
    _core(cores.AcksBeforeFlush, POWER),
    _core(cores.CountsOwnBeforeFlush, POWER),
    _core(cores.CountsReceived, POWER),
    _core(cores.SendsVoteAtOnce, POWER | {"isolate": 6.0}),
    _core(cores.VotesTwice, ELECTIONS, brokers=5),
    _core(cores.VotesForStaleLogs, DIVERGENCE),
    _core(cores.CommitsOldEpochs, DIVERGENCE, brokers=5, replication=5),
    _core(cores.SkipsNoop, ELECTIONS),
    _core(cores.TruncatesOnDuplicates, LATE),
    _core(cores.TruncatesToMessage, LATE),
    _core(cores.NeverTruncates, DIVERGENCE),
    _core(cores.AcksOwnEnd, DIVERGENCE),
    _core(cores.CommitsOwnEnd, DIVERGENCE),
    _core(cores.KeepsAgreement, DIVERGENCE),
    _core(cores.SkipsPreviousEpoch, DIVERGENCE),
    _core(cores.CommitsWithMinority, ELECTIONS),
    _core(cores.NeverStepsDown, ELECTIONS),
)
