"""Scenarios of a broken network between brokers, and between clients and one broker."""

import random
import time

from faults.namespaces import cannot_use_namespaces
from faults.network import CLIENTS, ProxyNetwork, name_of
from faults.nodes import Node
from faults.run import Load, Run, ScenarioError
from faults.scenarios.three.processes import BROKERS, everything
from moldau.testing.waiting import slowdown

ONE = Load(partitions=1, replication=3, rate=40.0)
_IN_FLIGHT_SECONDS = 1.0
_ISOLATED_SECONDS = 6.0
_STEP_DOWN_SECONDS_MAX = 10.0
_MINORITY = "minority"


def _packets() -> str:
    """Namespaces if there are any: there packets vanish."""
    return "proxies" if cannot_use_namespaces() else "namespaces"


def _proxies(run: Run) -> ProxyNetwork:
    if not isinstance(run.network, ProxyNetwork):
        raise ScenarioError("this scenario needs proxies")
    return run.network


def _prove(run: Run, source: str, target: str, node: Node) -> None:
    """`node` listens where the cut is tried."""
    port = int((node.raft if CLIENTS not in (source, target) else node.listen).rpartition(":")[2])
    reported = run.network.proof(source, target, port)
    if reported:
        run.proof(reported)
    else:
        run.problem(f"something passed from {source} to {target}")


def _isolate(run: Run, node: Node) -> None:
    """From its peers, not from its clients."""
    for other in run.cluster.others(node):
        run.network.cut(name_of(node.number), name_of(other.number))


def isolate_leader(run: Run) -> None:
    """Cut a leader off its peers, with a client that reaches only it: that client gets no ack."""
    packets = _packets()
    has_minority = packets == "namespaces"
    run.start_brokers(BROKERS, network=packets, others=(_MINORITY,) if has_minority else ())
    run.start_load()
    for turn in range(1 if run.quick else 5):
        run.await_whole()
        # A leader that hands over meanwhile would take its client's acks with it.
        run.await_balanced()
        run.await_acks_of(everything(run))
        leader = run.cluster.leader(0)
        peer = run.cluster.others(leader)[0]
        name = f"p{turn + 8}"
        if has_minority:
            for other in run.cluster.others(leader):
                run.network.cut(_MINORITY, name_of(other.number))
            run.start_client("produce", name, where=_MINORITY, bootstrap=leader.advertised)
            run.await_acks_by(name, 5)
        run.fault("isolate leader")
        _isolate(run, leader)
        started = time.monotonic_ns()
        run.await_acks_of(everything(run), 20)
        run.healed()
        _await_step_down(run, leader, 0)
        time.sleep(_ISOLATED_SECONDS)
        _prove(run, name_of(leader.number), name_of(peer.number), peer)
        ended = time.monotonic_ns()
        if has_minority:
            acks = run.acks_between(started + int(_IN_FLIGHT_SECONDS * 1e9), ended, name)
            run.expect(acks == 0, f"{acks} acks came from an isolated leader")
            run.note(f"{acks} acks in {(ended - started) / 1e9:.0f} s from an isolated leader")
        run.network.heal()
        if has_minority:
            run.await_acks_by(name, 5)
        run.await_acks_of(everything(run))
    run.await_whole()
    run.finish()


def _await_step_down(run: Run, node: Node, partition: int) -> None:
    """Until the broker itself says that somebody else leads, or nobody."""
    seconds_max = _STEP_DOWN_SECONDS_MAX * slowdown()
    deadline = time.monotonic() + seconds_max
    while run.cluster.claims(node, partition):
        if time.monotonic() > deadline:
            run.problem(f"broker {node.number} still claims to lead after {seconds_max:.0f} s")
            return
        time.sleep(0.1)


def deaf_leader(run: Run) -> None:
    """A leader is heard and hears nobody: it steps down, and another one leads."""
    run.start_brokers(BROKERS, network="proxies")
    run.start_load()
    for _ in range(1 if run.quick else 5):
        deafen_one_leader(run)
    run.await_whole()
    run.finish()


def deafen_one_leader(run: Run) -> None:
    run.await_whole()
    run.await_acks_of(everything(run))
    leader = run.cluster.leader(0)
    others = run.cluster.others(leader)
    before = run.cluster.epochs()[0]
    run.fault("deaf leader", run.cluster.led_by(leader))
    for other in others:
        run.network.cut(name_of(other.number), name_of(leader.number), both=False)
    _await_step_down(run, leader, 0)
    run.await_acks_of(everything(run), 20)
    run.healed()
    run.expect(run.cluster.epochs()[0] > before, "no other leader was elected")
    _prove(run, name_of(others[0].number), name_of(leader.number), leader)
    run.network.heal()


def deaf_follower(run: Run) -> None:
    """A follower hears nobody and asks for votes all the time: it gets none, nothing changes."""
    run.start_brokers(BROKERS, network="proxies")
    run.start_load()
    for _ in range(1 if run.quick else 3):
        run.await_whole()
        run.await_acks_of(everything(run))
        victim = run.cluster.follower()
        others = run.cluster.others(victim)
        before = run.cluster.epochs()
        run.fault("deaf follower")
        for other in others:
            run.network.cut(name_of(other.number), name_of(victim.number), both=False)
        time.sleep(_ISOLATED_SECONDS if run.quick else 15.0)
        run.await_acks_of(everything(run), 20)
        _prove(run, name_of(others[0].number), name_of(victim.number), victim)
        run.network.heal()
        run.await_whole()
        time.sleep(3.0)
        after = run.cluster.epochs()
        run.expect(after == before, f"epochs went from {before} to {after}")
        run.healed()
    run.finish()


def cut_pair(run: Run) -> None:
    """A leader and one follower cannot talk, the third sees both: one leader, and progress."""
    run.start_brokers(BROKERS, network=_packets())
    run.start_load()
    for _ in range(1 if run.quick else 4):
        run.await_whole()
        run.await_acks_of(everything(run))
        leader = run.cluster.leader(0)
        other = run.cluster.others(leader)[0]
        before = run.cluster.epochs()
        run.fault("cut a pair")
        run.network.cut(name_of(leader.number), name_of(other.number))
        time.sleep(_ISOLATED_SECONDS if run.quick else 12.0)
        run.await_acks_of(everything(run), 20)
        _prove(run, name_of(leader.number), name_of(other.number), other)
        after = run.cluster.epochs()
        most = max(after[partition] - before[partition] for partition in before)
        run.expect(most <= 2, f"epochs went from {before} to {after}")
        run.note(f"a partition changed its leader {most} times at most")
        run.network.heal()
        run.await_acks_of(everything(run))
        run.healed()
    run.await_whole()
    run.finish()


def cut_clients(run: Run) -> None:
    """Clients cannot reach one leader, which goes on to lead: retries make no duplicates."""
    run.start_brokers(BROKERS, network=_packets())
    run.start_load()
    lengths = [1.0, 9.0] if run.quick else [0.5, 2.0, 9.0]
    for seconds in lengths:
        for way in ("back",) if run.quick else ("both", "forward", "back"):
            run.await_acks_of(everything(run))
            leader = run.cluster.leader(0)
            name = name_of(leader.number)
            run.fault(f"cut clients {way}", run.cluster.led_by(leader))
            source, target = (CLIENTS, name) if way == "forward" else (name, CLIENTS)
            run.network.cut(source, target, both=way == "both")
            time.sleep(seconds)
            if run.spaces is not None:
                _prove(run, CLIENTS, name, leader)
            else:
                _prove(run, source, target, leader)
            run.network.heal()
            run.await_acks_of(everything(run))
            run.healed()
    run.finish()


def rejoin(run: Run) -> None:
    """A follower is alone for long, and comes back: no election is needed."""
    run.start_brokers(BROKERS, network=_packets())
    run.start_load()
    run.await_whole()
    run.await_acks_of(everything(run))
    victim = run.cluster.follower()
    before = run.cluster.epochs()
    run.fault("isolate follower")
    _isolate(run, victim)
    time.sleep(8.0 if run.quick else 40.0)
    peer = run.cluster.others(victim)[0]
    _prove(run, name_of(victim.number), name_of(peer.number), peer)
    run.network.heal()
    run.await_whole()
    time.sleep(3.0)
    run.await_acks_of(everything(run), 20)
    after = run.cluster.epochs()
    run.expect(after == before, f"epochs went from {before} to {after}")
    run.finish()


def flap(run: Run) -> None:
    """Links between random pairs go and come every second: progress soon after the last."""
    rng = random.Random(12)
    run.start_brokers(BROKERS, network="proxies")
    run.start_load()
    run.await_whole()
    run.fault("flapping links")
    flaps = 0
    for _ in range(10 if run.quick else 90):
        first, second = rng.sample(run.nodes, 2)
        both = rng.random() < 0.5
        run.network.cut(name_of(first.number), name_of(second.number), both=both)
        flaps += 1
        time.sleep(1.0)
        if rng.random() < 0.7:
            run.network.heal()
    run.network.heal()
    run.healed()
    run.fault("healed")
    run.await_acks_of(everything(run), 1, seconds_max=10.0)
    run.healed()
    held = sum(link.counters.chunks_held for link in _proxies(run).peers.values())
    run.expect(held > 0, "nothing was held up")
    run.proof(f"{flaps} flaps, {held} chunks held up")
    run.await_whole()
    run.finish()


def slow(run: Run) -> None:
    """200 ms more each way between brokers, and 5 % of the chunks stall for as long again."""
    run.start_brokers(BROKERS, network="proxies")
    run.start_load()
    run.await_whole()
    before = run.cluster.epochs()
    run.fault("slow")
    network = _proxies(run)
    links = list(network.peers.values())
    for link in links:
        link.set(delay_seconds=0.2, stall_chance=0.05, stall_seconds=0.2)
    deadline = time.monotonic() + (8.0 if run.quick else 60.0)
    while time.monotonic() < deadline and run.result.passed:
        run.await_acks_of(everything(run), 10, seconds_max=20.0)
    network.heal()
    run.await_acks_of(everything(run))
    delayed = sum(link.counters.chunks_delayed for link in links)
    stalls = sum(link.counters.stalls for link in links)
    run.expect(delayed > 0 and stalls > 0, "nothing was delayed or stalled")
    run.proof(f"{delayed} chunks delayed, {stalls} stalled")
    after = run.cluster.epochs()
    elections = sum(after[partition] - before[partition] for partition in before)
    run.note(f"{elections} changes of a leader")
    run.expect(elections <= len(before), f"epochs went from {before} to {after}")
    run.await_whole()
    run.finish()
