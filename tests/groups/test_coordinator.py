"""Arbitrary events in any order, with writes that finish late or fail."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moldau.model.coordinator_events import Tick
from moldau.model.errors import ErrorCode

GROUPS = st.sampled_from(["g", "h", ""])
INSTANCES = st.sampled_from([None, None, "i", "j"])
PROTOCOLS = st.sampled_from(
    [
        (("range", b"\x00\x01\x00\x00\x00\x01\x00\x01t"),),
        (("range", b"junk"), ("sticky", b"")),
        (("sticky", b""), ("range", b"")),
        (("odd", b""),),
        (),
    ]
)
MEMBER = st.integers(-2, 6)
"""Index into the ids that were ever given out; negative: none, or an unknown one."""
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("join"),
            GROUPS,
            MEMBER,
            INSTANCES,
            PROTOCOLS,
            st.booleans(),
            st.booleans(),
            st.sampled_from([0, 10_000, 30_000]),
        ),
        st.tuples(st.just("sync"), GROUPS, MEMBER, INSTANCES, st.integers(-1, 1)),
        st.tuples(st.just("heartbeat"), GROUPS, MEMBER, INSTANCES, st.integers(-1, 1)),
        st.tuples(st.just("leave"), GROUPS, MEMBER, INSTANCES),
        st.tuples(
            st.just("commit"),
            GROUPS,
            MEMBER,
            INSTANCES,
            st.integers(-1, 1) | st.just("simple"),
            st.sampled_from([-1, -1, 5000]),
        ),
        st.tuples(st.just("delete groups"), st.lists(GROUPS, max_size=3)),
        st.tuples(st.just("delete offsets"), GROUPS),
        st.tuples(st.just("delete topic")),
        st.tuples(st.just("advance"), st.sampled_from([0.0, 1.0, 9.0, 40.0, 700.0])),
        st.tuples(st.just("complete")),
        st.tuples(st.just("fail"), st.sampled_from(list(ErrorCode)[1:40])),
        st.tuples(st.just("hold"), st.booleans()),
        st.tuples(st.just("tick")),
    ),
    max_size=60,
)


class Driver:
    """Turns steps into requests of members, known and unknown."""

    def __init__(self, world) -> None:
        self.world = world

    def member(self, index: int) -> str:
        if index == -1:
            return ""
        ids = [r.member_id for r in self.world.replies.values() if getattr(r, "member_id", "")]
        return ids[-1 - index % len(ids)] if ids and index >= 0 else "nobody"

    def generation(self, group: str, shift: int) -> int:
        known = self.world.coordinator._runtime.groups.get(group)
        return (known.generation if known else 0) + shift

    def step(self, step) -> None:  # noqa: C901 - one case per kind
        world = self.world
        match step:
            case ("join", group, index, instance, protocols, required, skips, rebalance_ms):
                world.send_join(
                    self.member(index),
                    group=group,
                    instance_id=instance,
                    protocols=protocols,
                    member_id_required=required,
                    can_skip_assignment=skips,
                    rebalance_timeout_ms=rebalance_ms,
                )
            case ("sync", group, index, instance, shift):
                member = self.member(index)
                generation = self.generation(group, shift)
                world.send_sync(
                    member, generation, {member: b"x"}, group=group, instance_id=instance
                )
            case ("heartbeat", group, index, instance, shift):
                generation = self.generation(group, shift)
                world.heartbeat(self.member(index), generation, group=group, instance_id=instance)
            case ("leave", group, index, instance):
                world.leave(group=group, instances=[(self.member(index), instance)])
            case ("commit", group, index, instance, shift, retention_ms):
                offsets = {world.tp("t", n): int(world.now) + n for n in range(2)}
                if shift == "simple":
                    world.send_commit(offsets, group=group, retention_ms=retention_ms)
                else:
                    world.send_commit(
                        offsets,
                        self.member(index),
                        self.generation(group, shift),
                        group=group,
                        instance_id=instance,
                        retention_ms=retention_ms,
                    )
            case ("delete groups", group_ids):
                world.delete_groups(*group_ids)
            case ("delete offsets", group):
                world.delete_offsets(world.tp("t"), world.tp("u"), group=group)
            case ("delete topic",):
                world.delete_topics("t")
            case ("advance", seconds):
                world.advance(seconds)
            case ("complete",):
                if world.held:
                    world.complete()
            case ("fail", error):
                if world.held:
                    world.fail(error)
            case ("hold", hold):
                world.hold_writes = hold
                world.take([])
            case ("tick",):
                world.handle(Tick())


def durable(world) -> dict[str, object]:
    groups = world.coordinator._runtime.groups
    return {
        name: (group.stored, dict(group.offsets))
        for name, group in groups.items()
        if group.stored is not None or group.offsets
    }


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=STEPS,
    delay_ms=st.sampled_from([0, 3000]),
    size_max=st.sampled_from([2, 100]),
    bytes_max=st.sampled_from([1, 10**6]),
    memory_max=st.sampled_from([8_000, 10**6]),
)
def test_any_events_keep_the_coordinator_sound(
    make_world, steps, delay_ms, size_max, bytes_max, memory_max
):
    world = make_world(
        initial_rebalance_delay_ms=delay_ms,
        group_size_max=size_max,
        groups_bytes_max=memory_max,
        persist_bytes_max=bytes_max,
        offsets_retention_ms=600_000,
    )
    driver = Driver(world)
    for step in steps:
        driver.step(step)
    # What is in memory as durable is exactly what the log says, whatever is under way.
    assert durable(world.restarted()) == durable(world)
    world.release()
    assert durable(world.restarted()) == durable(world)
    # Given time, every request is answered once; `take` refuses a second answer.
    world.advance(3600)
    assert set(world.replies) == set(range(1, next(world.requests)))
    assert not world.held


@given(steps=STEPS)
def test_closing_at_any_moment_answers_every_request(make_world, steps):
    world = make_world(initial_rebalance_delay_ms=3000)
    driver = Driver(world)
    for step in steps:
        driver.step(step)
    world.take(world.coordinator.close(world.now))
    assert set(world.replies) == set(range(1, next(world.requests)))
