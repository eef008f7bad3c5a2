"""Scenarios of brokers that lost their identity: a lost bootstrap broker, lost metadata."""

import shutil
import time
from collections.abc import Callable

from faults.cluster import NO_LEADER
from faults.nodes import Node, NodeError
from faults.run import Run
from faults.scenarios.three.members import await_gone, join, leave
from faults.scenarios.three.processes import BROKERS, everything, kill

_ACKED = 500
_ALONE_SECONDS = 8.0
"""Time for brokers that must not agree on anything to do so all the same."""


def lost_bootstrap_broker(
    *, name: str, end: Callable[[Run, Node], object]
) -> Callable[[Run], None]:
    """A bootstrap broker lost its disk; `name` is what all call their cluster."""

    def play(run: Run) -> None:
        run.start_brokers(BROKERS, settings={"CLUSTER_ID": name} if name else {})
        run.start_load()
        first, second, third = run.nodes
        run.await_whole()
        first.stop()
        run.restart(first)
        run.await_whole()
        run.await_acks_of(everything(run))
        end(run, second)
        run.await_acks(_ACKED)
        run.stop_load()
        run.fault("the bootstrap broker loses its disk")
        kill(run, first, third)
        shutil.rmtree(first.data_dir)
        _refuse_to_begin(run, first)
        _bootstrap_another(run, first, second)
        # The third one holds what was acked, and finds somebody who knows it as it was.
        run.start(third)
        second.await_ready()
        first.stop()
        run.expect(not _strays(third), f"broker 3 set logs aside: {_strays(third)}")
        # A client of librdkafka that meets no leaders at first does not ask again.
        run.await_true(lambda: _is_led(run), "no leader without the bootstrap broker")
        run.expect(run.read_all(), "not everything could be read without the bootstrap broker")
        node = join(run)
        leave(run, first, through=second)
        await_gone(run, first)
        run.await_whole(120.0)
        run.note(f"replaced by broker {node.number}")
        run.start_client("produce", "p9")
        run.await_acks_of(everything(run), 20)
        run.finish()

    return play


def killed(run: Run, node: Node) -> None:
    kill(run, node)


def stopped(run: Run, node: Node) -> None:
    run.expect(node.stop() == 0, f"broker {node.number} did not stop in order")


def _refuse_to_begin(run: Run, node: Node) -> None:
    """An empty directory and no word of what to do with it: a person has to say."""
    node.bootstraps = False
    try:
        run.start(node)
    except NodeError:
        said = node.last_output
        reported = "--bootstrap" in said and "--join-addr" in said and "Traceback" not in said
        run.expect(reported, f"the refusal does not say what to do: {said[-300:]}")
        run.proof(f"broker {node.number} without its directory: exit code {node.last_code}")
    else:
        run.problem(f"broker {node.number} began without --bootstrap or --join-addr")
        node.stop()


def _bootstrap_another(run: Run, first: Node, other: Node) -> None:
    """With --bootstrap it makes a cluster: another one, which no other broker joins."""
    first.bootstraps = True
    shutil.rmtree(first.data_dir, ignore_errors=True)
    run.start(first)
    run.launch(other)
    time.sleep(_ALONE_SECONDS)
    run.expect(other.alive(), f"broker {other.number} ended: {other.last_output[-300:]}")
    # Fails unless it answers: silence would prove nothing.
    reported = run.cluster.topology(other)
    run.expect(reported["controller"] == NO_LEADER, f"broker {other.number} has found a controller")
    led = [p for p in everything(run) if run.cluster.claims(other, p)]
    run.expect(
        not led, f"broker {other.number} leads {led} with a bootstrap broker that knows nothing"
    )
    known = [entry["id"] for entry in run.cluster.topology(first)["brokers"]]
    run.expect(known == [first.number], f"the second cluster has the brokers {known}")
    run.proof("bootstrapped again it was alone, and no broker led with its vote")


def _is_led(run: Run) -> bool:
    leads = run.cluster.leads()
    return bool(leads) and all(lead.leader != NO_LEADER for lead in leads.values())


def _await_change(run: Run, node: Node) -> None:
    """Until a topic was made or deleted: else there would be nothing to forget."""
    before = _count_topics(run, node)
    run.await_true(lambda: _count_topics(run, node) != before, "no topic was made or deleted")


def _count_topics(run: Run, node: Node) -> int:
    return len(run.cluster.topology(node)["topics"])


def _strays(node: Node) -> list[str]:
    folder = node.data_dir / "strays"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def lost_metadata(run: Run) -> None:
    """`metadata/` of one is deleted, of a bootstrap broker too: it refuses, or learns it first.

    What was acked meanwhile is on its disk and on one that stands still: the third, which missed
    it, must not go on with the vote of one that forgot it.
    """
    run.start_brokers(BROKERS)
    run.start_load()
    run.start_churn(pause_seconds=0.2)
    for victim in run.nodes[:1] if run.quick else run.nodes[:2]:
        run.await_whole()
        run.await_acks_of(everything(run))
        witness, late = (node for node in run.nodes if node is not victim)
        late.stop()
        run.await_acks_of(everything(run), 20)
        _await_change(run, witness)
        run.fault("metadata deleted")
        kill(run, victim, witness)
        shutil.rmtree(victim.data_dir / "metadata")
        run.launch(victim, late)
        time.sleep(_ALONE_SECONDS)
        reported = {n: t["controller"] for n, t in run.cluster.topologies().items()}
        run.expect(reported.get(late.number) == NO_LEADER, f"not without a controller: {reported}")
        run.expect(
            set(reported.values()) == {NO_LEADER}, f"a controller without the metadata: {reported}"
        )
        run.start(witness)
        late.await_ready()
        _learn_again(run, victim, witness)
        run.await_whole(120.0)
        run.healed()
    run.await_acks_of(everything(run), 20)
    run.stop_churn()
    run.finish()


def _learn_again(run: Run, victim: Node, member: Node) -> None:
    """Wait for one that lost its metadata; if it refuses, start it as it says."""
    try:
        victim.await_ready()
        run.proof(f"broker {victim.number} without metadata/ waited, and learned it again")
    except NodeError:
        said = victim.last_output
        reported = "--join-addr" in said and "Traceback" not in said
        run.expect(reported, f"the refusal does not say what to do: {said[-300:]}")
        victim.join = member.http
        run.start(victim)
        run.proof(
            f"broker {victim.number} without metadata/ refused (exit code {victim.last_code}), "
            "and learned it again with --join-addr"
        )
