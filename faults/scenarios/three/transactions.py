"""Scenarios of transactions whose coordinator dies, and of requests that come too late."""

import random
import time
from collections import Counter
from collections.abc import Sequence

from faults.nodes import Node, NodeError
from faults.run import TOPIC, Load, Run
from faults.scenarios.three.processes import BROKERS, everything, kill

LOAD = Load(partitions=6, replication=3, rate=30.0, transactors=4, producers=0, raw=True)
STATE = "__transaction_state"
_HELD_SECONDS_MAX = 8.0
_DECIDED_SECONDS_MAX = 0.8
"""Less than it takes the others to elect a leader in place of one that stands still."""


ONE_COORDINATOR = {
    "GROUP__OFFSETS_PARTITIONS": "1",
    "TRANSACTION__STATE_PARTITIONS": "1",
    "QUEUE__STATE_PARTITIONS": "1",
}
"""Of each kind, so that its death concerns everybody."""


def coordinator(run: Run, topic: str = STATE) -> Node:
    """The leader of the only partition of an internal topic."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        lead = run.cluster.leads(topic).get(0)
        if lead is not None and lead.leader > 0 and run.cluster.node(lead.leader).alive():
            return run.cluster.node(lead.leader)
        time.sleep(0.1)
    raise NodeError(f"no leader of {topic}")


def _count(run: Run, operation: str) -> int:
    return sum(event["op"] == operation for event in run.events())


def _decide(run: Run, bystander: Node) -> int:
    """Let transactions be decided whose markers cannot be written where this one leads."""
    hold = run.home / "hold"
    held = _count(run, "x-held")
    hold.touch()
    deadline = time.monotonic() + _HELD_SECONDS_MAX
    while _count(run, "x-held") < held + run.load.transactors and time.monotonic() < deadline:
        time.sleep(0.02)
    led = run.cluster.led_by(bystander)
    before = _ended_in(run, led)
    bystander.pause()
    hold.unlink()
    deadline = time.monotonic() + _DECIDED_SECONDS_MAX
    while _ended_in(run, led) == before and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    return _ended_in(run, led) - before


def _ended_in(run: Run, partitions: Sequence[int]) -> int:
    """Transactions that are decided and wrote to one of these partitions."""
    places = {f"{TOPIC}/{partition}" for partition in partitions}
    written: set[str] = set()
    ended: set[str] = set()
    for event in run.events():
        if event["op"] == "send" and event["tp"] in places:
            written.add(event["t"])
        elif event["op"] == "txn":
            ended.add(event["t"])
    return len(written & ended)


def kill_coordinator(run: Run) -> None:
    """Kill the coordinator between the decision and its markers, or at any other moment."""
    rng = random.Random(run.seed)
    run.start_brokers(BROKERS, settings=ONE_COORDINATOR)
    run.start_load()
    times = 3 if run.quick else 10
    decided_in_all = between = 0
    for turn in range(times):
        run.await_whole()
        run.await_acks_of(everything(run))
        victim = coordinator(run)
        if turn % 3 < 2:
            bystander = rng.choice(run.cluster.others(victim))
            decided = _decide(run, bystander)
            decided_in_all += decided
            between += decided > 0
            run.fault("kill coordinator between the decision and its markers")
            kill(run, victim)
            bystander.resume()
        else:
            time.sleep(rng.uniform(0, 0.3))
            run.fault("kill coordinator")
            kill(run, victim)
        run.await_acks_of(everything(run))
        run.healed()
        run.restart(victim)
    run.await_whole()
    run.expect(between > 0, "no transaction was decided while its markers could not be written")
    run.proof(
        f"{times} coordinators ended by signal 9, {between} of them when {decided_in_all} ends "
        "were decided and a leader that their markers go to stood still"
    )
    run.stop_load("transact")
    run.expect_stable()
    judge_late(run)
    run.finish()
    note_outcomes(run)


def judge_late(run: Run) -> None:
    """All that came late was refused."""
    answers: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for event in run.events():
        if event["op"] == "x-late":
            answers[event["what"]] += 1
            accepted[event["what"]] += event["code"] == 0
    for what in ("end", "produce"):
        run.expect(answers[what] > 0, f"no {what} came late")
        run.expect(not accepted[what], f"{accepted[what]} times a late {what} was accepted")
    run.proof(f"{answers['end']} ends and {answers['produce']} writes came late, all refused")


def note_outcomes(run: Run) -> None:
    outcomes: Counter[str] = Counter()
    for event in run.events():
        if event["op"] == "txn" and not event["t"].endswith("-late"):
            outcomes[event["outcome"]] += 1
    run.expect(outcomes["commit"] > 0, "no transaction was committed")
    run.note(
        f"{outcomes['commit']} transactions committed, {outcomes['abort']} aborted, "
        f"{outcomes['unknown']} of unknown outcome"
    )
