"""Records may be applied in any order: the index of owners follows."""

from moldau.groups.consumer.records import CurrentAssignment, CurrentAssignmentRecord
from moldau.groups.consumer.state import ConsumerState
from moldau.model.ids import TopicId

TOPIC = TopicId(b"t" * 16)


def has(member_id, *indexes):
    assigned = {TOPIC: frozenset(indexes)} if indexes else {}
    return CurrentAssignmentRecord(
        group_id="g", member_id=member_id, value=CurrentAssignment(assigned=assigned)
    )


def test_a_partition_that_went_on_before_its_owner_let_go_stays_where_it_went():
    state = ConsumerState()
    for record in (has("a", 0, 1), has("b", 1), has("a", 0)):
        state.apply(record)
    assert (state.owner(TOPIC, 0), state.owner(TOPIC, 1)) == ("a", "b")
    state.apply(CurrentAssignmentRecord(group_id="g", member_id="b", value=None))
    assert state.owner(TOPIC, 1) is None


def test_a_copy_is_changed_by_itself():
    state = ConsumerState()
    state.apply(has("a", 0))
    copy = state.copy()
    copy.apply(has("a"))
    assert (state.owner(TOPIC, 0), copy.owner(TOPIC, 0)) == ("a", None)
