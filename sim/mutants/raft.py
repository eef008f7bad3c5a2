"""Mistakes of the Raft core."""

from typing import Any

from moldau.raft import core as raft_core
from moldau.raft import leader as raft_leader
from moldau.replica import driver
from sim.mutants import Mutant, Patch, cores, mutant

ELECTIONS = {"kill": 5.0, "isolate": 6.0, "cut": 8.0, "pause": 8.0}
DIVERGENCE = {"isolate": 4.0, "cut": 5.0, "stall": 4.0, "kill": 8.0}
POWER = {"power": 4.0, "power-in-write": 4.0, "stall": 5.0, "blackout": 12.0}
LATE = {"slow-network": 6.0, "break": 4.0, "isolate": 6.0, "stop": 8.0}


_USERS = {
    "RaftCore": driver,
    "Election": raft_core,
    "Follower": raft_core,
    "Leader": raft_core,
    "LeadershipTransfer": raft_leader,
    "ReadIndex": raft_leader,
}
"""The module that makes the instances of each part of the core."""


def part(mutated: type) -> Patch:
    """Use `mutated` instead of its base class."""
    name = mutated.__bases__[0].__name__
    return _USERS[name], name, mutated


def _core(core: type, faults: dict[str, float] | None, *scenarios: str, **plan: Any) -> Mutant:
    about = (core.__doc__ or "").strip()
    return mutant(core.__name__, "raft", about, faults, part(core), scenarios=scenarios, **plan)


MUTANTS = (
    _core(cores.AcksBeforeFlush, POWER),
    _core(cores.CountsOwnBeforeFlush, POWER),
    _core(cores.CountsReceived, POWER),
    _core(cores.SendsVoteAtOnce, POWER | {"isolate": 6.0}, "vote_then_crash", flush_seconds=0.2),
    _core(cores.VotesTwice, ELECTIONS, "vote_then_crash", brokers=5),
    _core(cores.VotesForStaleLogs, DIVERGENCE, "longer_log_loses"),
    _core(cores.CommitsOldEpochs, None, "figure_8"),
    _core(cores.SkipsNoop, ELECTIONS),
    _core(cores.TruncatesOnDuplicates, LATE, "stale_append"),
    _core(cores.TruncatesToMessage, None, "stale_append"),
    _core(cores.NeverTruncates, DIVERGENCE),
    _core(cores.AcksOwnEnd, DIVERGENCE),
    _core(cores.CommitsOwnEnd, DIVERGENCE),
    _core(cores.KeepsAgreement, None, "flush_aba"),
    _core(cores.SkipsPreviousEpoch, None, "lower_epoch_wins"),
    _core(cores.CommitsWithMinority, ELECTIONS),
    _core(cores.NeverStepsDown, None, "isolated_leader", "one_way_leader"),
    _core(cores.TakesStaleAnswers, None, "old_answers"),
    _core(cores.ComparesLengthOnly, None, "longer_log_loses"),
    _core(cores.KeepsTruncatedMembers, None, "leader_removal"),
    _core(cores.ChangesMembersEarly, None, "early_members"),
    _core(cores.ChangesMembersAtOnce, None, "members"),
    _core(cores.PreVoteIgnoresLog, None, "lagging_candidate"),
    _core(cores.PreVoteIgnoresLeader, None, "rejoin"),
    _core(cores.TransfersForever, None, "transfer"),
    _core(cores.SearchesOneByOne, None, "figure_7"),
    _core(cores.ReadsWithoutAsking, None, "isolated_leader"),
    _core(cores.VotesWithAnyLog, None, "wiped_disk"),
    _core(cores.StandsWithAnyLog, None, "wiped_disk"),
)
