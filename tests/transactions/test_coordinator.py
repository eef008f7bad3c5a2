"""A transaction from its first partition to its end, and everybody who gets in its way."""

from typing import Any

import msgspec
import pytest

from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerEpoch, ProducerId
from moldau.transactions.records import TransactionRecord, decode, encode
from moldau.transactions.results import ProducerResult

NONE = ErrorCode.NONE
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS


def at_epoch(world, name, epoch, **changes):
    """The same log, with the epoch of an id as far on as it would be after many years."""
    key, value = world.log[-1]
    last: Any = decode(key, value)
    stored = msgspec.structs.replace(last.value, producer_epoch=epoch, **changes)
    world.log.append(encode(TransactionRecord(transactional_id=name, value=stored)))
    return world.crash(), ProducerResult(
        error=NONE, producer_id=stored.producer_id, producer_epoch=epoch
    )


# ---- ids and epochs


def test_a_new_transactional_id_gets_a_producer_id_and_epoch_0(world):
    producer = world.init()
    assert (producer.error, producer.producer_id, producer.producer_epoch) == (NONE, 1000, 0)
    assert world.state() == "Empty"


def test_a_second_producer_with_the_id_fences_the_first(world):
    first = world.init()
    second = world.init()
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
    assert world.add(first) is ErrorCode.PRODUCER_FENCED
    assert world.add(second) is NONE
    assert world.end(first).error is ErrorCode.PRODUCER_FENCED


def test_a_second_producer_aborts_the_open_transaction_of_the_first(make_world):
    world = make_world(busy_wait_ms_max=100)
    first = world.init()
    world.add(first)
    second = world.init()
    assert [marker.is_commit for marker in world.asked] == [False]
    # The partitions hear of an epoch that the first producer does not have.
    assert world.asked[0].producer_epoch == 1
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 2)


def test_a_producer_that_may_not_wait_is_asked_to_retry(world):
    first = world.init()
    world.add(first)
    assert world.init().error is BUSY
    assert world.init().producer_epoch == 2


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(world, timeout_ms):
    assert world.init(timeout_ms=timeout_ms).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("name", ["", "x" * 2**15])
def test_an_id_that_cannot_be_stored_is_refused(world, name):
    assert world.init(name).error is ErrorCode.INVALID_REQUEST


def test_an_epoch_without_its_producer_id_is_refused(world):
    assert world.init(producer_epoch=3).error is ErrorCode.INVALID_REQUEST


def test_a_producer_that_goes_on_gets_the_next_epoch_and_the_same_again_on_a_retry(world):
    first = world.init()
    fields = {"producer_id": first.producer_id, "producer_epoch": first.producer_epoch}
    assert world.init(**fields).producer_epoch == 1
    assert world.init(**fields).producer_epoch == 1
    assert world.crash().init(**fields).producer_epoch == 1


def test_a_producer_that_goes_on_after_it_was_replaced_is_fenced(world):
    first = world.init()
    world.init()
    late = {"producer_id": first.producer_id, "producer_epoch": first.producer_epoch}
    assert world.init(**late).error is ErrorCode.PRODUCER_FENCED
    assert world.init(producer_id=7, producer_epoch=1).error is ErrorCode.PRODUCER_FENCED


def test_an_unknown_producer_that_continues_does_not_abort_an_open_transaction(world):
    first = world.init()
    second = world.init()
    world.add(second)
    late = {"producer_id": first.producer_id, "producer_epoch": first.producer_epoch}
    assert world.init(**late).error is ErrorCode.PRODUCER_FENCED
    assert world.state() == "Ongoing"


def test_used_up_epochs_give_way_to_a_new_producer_id(world):
    old = world.init()
    world, last = at_epoch(world, "t", 2**15 - 2)
    fields = {"producer_id": last.producer_id, "producer_epoch": last.producer_epoch}
    fresh = world.init(**fields)
    assert fresh.producer_id != old.producer_id
    assert fresh.producer_epoch == 0
    # The answer was lost: the same request gets the same answer.
    again = world.init(**fields)
    assert (again.producer_id, again.producer_epoch) == (fresh.producer_id, 0)
    assert world.add(last) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# ---- partitions


def test_partitions_of_an_unknown_id_or_another_producer_are_refused(world):
    producer = world.init()
    assert world.add(producer, name="u") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    stranger = ProducerResult(
        error=NONE, producer_id=ProducerId(7), producer_epoch=ProducerEpoch(0)
    )
    assert world.add(stranger) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert len(world.coordinator.list_transactions()[1]) == 1


def test_partitions_that_are_known_cost_no_write(world):
    producer = world.init()
    world.add(producer, world.tp("a"), world.tp("b"))
    written = len(world.log)
    assert world.add(producer, world.tp("b")) is NONE
    assert len(world.log) == written
    assert world.add(producer, world.tp("c")) is NONE
    assert len(world.coordinator.describe("t").partitions) == 3


def test_a_leader_learns_which_partitions_are_in_a_transaction(world):
    producer = world.init()
    a, b = world.tp("a"), world.tp("b")
    assert world.verify(producer, a) == {a: ErrorCode.TRANSACTION_ABORTABLE}
    world.add(producer, a)
    assert world.verify(producer, a, b) == {a: NONE, b: ErrorCode.TRANSACTION_ABORTABLE}
    world.end(producer)
    assert world.verify(producer, a) == {a: ErrorCode.TRANSACTION_ABORTABLE}
    world.init()
    assert world.verify(producer, a) == {a: ErrorCode.PRODUCER_FENCED}


def test_nothing_is_verified_while_a_transaction_ends(world):
    producer = world.init()
    a = world.tp("a")
    world.add(producer, a)
    world.hold_markers = True
    world.end(producer)
    assert world.verify(producer, a) == {a: BUSY}


def test_what_is_verified_at_once_is_what_is_known_to_be_open(world):
    producer = world.init()
    a, b = world.tp("a"), world.tp("b")

    def is_open(partition=a, name="t", producer_id=0, epoch=0):
        number = producer.producer_id + producer_id
        return world.coordinator.is_open(name, number, producer.producer_epoch + epoch, partition)

    assert not is_open()
    world.add(producer, a)
    assert is_open()
    assert [is_open(b), is_open(name="u"), is_open(producer_id=1), is_open(epoch=1)] == [False] * 4
    world.coordinator._entries["t"].writing = 99
    assert not is_open(), "what is being written may end it"
    world.coordinator._entries["t"].writing = None
    world.hold_markers = True
    world.end(producer)
    assert not is_open()


def test_nothing_is_open_for_a_coordinator_that_has_ended(world):
    producer = world.init()
    a = world.tp("a")
    world.add(producer, a)
    world.coordinator.close(world.now)
    assert not world.coordinator.is_open("t", producer.producer_id, producer.producer_epoch, a)


# ---- the end


@pytest.mark.parametrize(("is_commit", "state"), [(True, "Commit"), (False, "Abort")])
def test_an_end_is_stored_then_sent_to_the_partitions_then_completed(world, is_commit, state):
    producer = world.init()
    world.add(producer, world.tp("a"), world.tp("b", 3))
    world.hold_writes = world.hold_markers = True
    request = world.end(producer, is_commit)
    assert isinstance(request, int)
    assert not world.asked
    world.store()
    assert world.replies[request].error is NONE
    assert world.state() == "Prepare" + state
    (asked,) = world.asked
    assert asked.partitions == (("a", 0), ("b", 3))
    assert asked.is_commit is is_commit
    assert asked.coordinator_epoch == 1
    world.mark(partitions=[world.tp("a")])
    assert not world.writes
    world.mark(partitions=[world.tp("b", 3)])
    assert world.state() == "Prepare" + state
    world.store()
    assert world.state() == "Complete" + state


def test_an_end_may_be_repeated_but_not_changed(world):
    producer = world.init()
    assert world.end(producer).error is ErrorCode.INVALID_TXN_STATE
    world.add(producer)
    world.hold_markers = True
    world.end(producer, is_commit=True)
    assert world.end(producer, is_commit=True).error is BUSY
    assert world.end(producer, is_commit=False).error is ErrorCode.INVALID_TXN_STATE
    world.mark()
    assert world.end(producer, is_commit=True).error is NONE
    assert world.end(producer, is_commit=False).error is ErrorCode.INVALID_TXN_STATE


def test_the_next_transaction_waits_for_the_end_of_the_last(world):
    producer = world.init()
    world.add(producer)
    world.hold_markers = True
    world.end(producer)
    assert world.add(producer) is BUSY
    assert world.init().error is BUSY
    world.mark()
    assert world.add(producer) is NONE


def test_a_request_waits_for_an_end_and_is_stored_with_it(make_world):
    world = make_world(busy_wait_ms_max=100)
    producer = world.init()
    world.add(producer)
    world.hold_markers = True
    world.end(producer)
    request = world.add(producer, world.tp("b"))
    written = len(world.log)
    world.hold_writes = True
    world.mark()
    assert [len(write.records) for write in world.writes.values()] == [2]
    world.store()
    assert set(world.replies[request].errors.values()) == {NONE}
    assert len(world.log) == written + 2
    assert world.state() == "Ongoing"
    assert world.crash().coordinator.describe("t").partitions == {world.tp("b")}


def test_an_end_that_is_everywhere_is_stored_with_the_next_beginning(make_world):
    world = make_world(complete_wait_ms=20)
    producer = world.init()
    world.add(producer)
    world.end(producer)
    assert world.state() == "PrepareCommit"
    world.hold_writes = True
    request = world.add(producer, world.tp("b"))
    assert [len(write.records) for write in world.writes.values()] == [2]
    world.store()
    assert set(world.replies[request].errors.values()) == {NONE}
    assert world.coordinator.describe("t").partitions == {world.tp("b")}


def test_an_end_that_is_everywhere_is_stored_by_itself_if_nothing_follows(make_world):
    world = make_world(complete_wait_ms=20)
    producer = world.init()
    world.add(producer)
    world.end(producer)
    world.tick(0.01)
    assert world.state() == "PrepareCommit"
    world.tick(0.011)
    assert world.state() == "CompleteCommit"
    assert len(world.asked) == 1


def test_a_request_that_changes_nothing_gets_the_end_when_it_is_stored(make_world):
    world = make_world(complete_wait_ms=20, busy_wait_ms_max=100)
    producer = world.init()
    world.add(producer)
    world.end(producer)
    assert world.end(producer).error is NONE
    assert world.state() == "CompleteCommit"
    world.add(producer)
    world.end(producer)
    assert world.init().producer_epoch == 1
    assert world.state() == "Empty"


def test_a_request_that_waited_too_long_is_sent_back(make_world):
    world = make_world(busy_wait_ms_max=100, busy_waiting_max=2)
    producer = world.init()
    world.add(producer)
    world.hold_markers = True
    world.end(producer)
    request, other = world.add(producer), world.add(producer)
    assert world.add(producer) is BUSY
    world.tick(0.2)
    for one in (request, other):
        assert set(world.replies[one].errors.values()) == {BUSY}


def test_the_end_and_a_waiting_request_are_both_mended_when_their_write_fails(make_world):
    world = make_world(busy_wait_ms_max=100)
    producer = world.init()
    world.add(producer)
    world.hold_markers = True
    world.end(producer)
    request = world.add(producer)
    world.hold_writes = True
    world.mark()
    world.refuse()
    errors = set(world.replies[request].errors.values())
    assert errors == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert world.state() == "PrepareCommit"
    world.hold_writes = False
    world.tick(2.0)
    assert world.state() == "CompleteCommit"


def test_markers_that_failed_are_asked_for_again_more_and_more_slowly(world):
    producer = world.init()
    world.add(producer, world.tp("a"), world.tp("b"))
    world.hold_markers = True
    world.end(producer)
    world.mark(partitions=[world.tp("a")])
    pauses = []
    for _ in range(10):
        world.fail_marks()
        before = world.now
        world.now = world.coordinator.next_deadline()
        pauses.append(round(world.now - before, 3))
        world.tick()
        assert world.asked[-1].partitions == (world.tp("b"),)
    assert pauses[:4] == [0.02, 0.04, 0.08, 0.16]
    assert pauses[-1] == 1.0
    world.mark()
    assert world.state() == "CompleteCommit"


def test_a_response_to_an_earlier_request_does_not_count_for_a_later_transaction(world):
    producer = world.init()
    world.add(producer)
    world.hold_markers = True
    world.end(producer)
    (first,) = world.markers
    world.mark(first)
    world.add(producer)
    world.end(producer, is_commit=False)
    world.mark(first)
    assert world.state() == "PrepareAbort"


def test_a_prepared_end_outlives_the_coordinator(world):
    producer = world.init()
    world.add(producer, world.tp("a"), world.tp("b"))
    world.hold_markers = True
    world.end(producer)
    world.mark(partitions=[world.tp("a")])
    heir = world.crash()
    (asked,) = heir.asked
    assert asked.partitions == (world.tp("a"), world.tp("b"))
    assert asked.coordinator_epoch == 2
    assert asked.is_commit
    assert heir.state() == "CompleteCommit"


def test_a_failed_write_changes_nothing(world):
    producer = world.init()
    world.hold_writes = True
    request = world.add(producer)
    world.refuse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert set(world.replies[request].errors.values()) == {ErrorCode.NOT_COORDINATOR}
    assert world.state() == "Empty"
    request = world.init("u", new_producer_id=5)
    world.refuse()
    assert world.replies[request].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.coordinator.describe("u").error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


# ---- epochs that rise with each transaction


def test_with_version_2_each_end_gives_the_next_epoch(world):
    producer = world.init()
    world.add(producer, version=2)
    ended = world.end(producer, version=2)
    assert (ended.error, ended.producer_epoch) == (NONE, 1)
    assert world.asked[0].producer_epoch == 1
    again = world.end(producer, version=2)
    assert (again.error, again.producer_epoch) == (NONE, 1)
    assert world.end(producer, is_commit=False, version=2).error is ErrorCode.INVALID_TXN_STATE
    assert world.add(producer, version=2) is ErrorCode.PRODUCER_FENCED


def test_a_delayed_end_of_version_2_cannot_end_a_later_transaction(world):
    first = world.init()
    world.add(first, version=2)
    second = world.end(first, version=2)
    world.add(second, version=2)
    assert world.end(first, version=2).error is ErrorCode.PRODUCER_FENCED
    assert world.end(first, is_commit=False, version=2).error is ErrorCode.PRODUCER_FENCED
    assert world.state() == "Ongoing"


def test_an_older_client_is_exposed_to_its_own_delayed_end(world):
    producer = world.init()
    world.add(producer)
    world.end(producer)
    world.add(producer)
    assert world.end(producer).error is NONE


def test_a_client_of_version_2_may_abort_what_it_never_began(world):
    producer = world.init()
    assert world.end(producer, version=2).error is ErrorCode.INVALID_TXN_STATE
    aborted = world.end(producer, is_commit=False, version=2)
    assert (aborted.error, aborted.producer_epoch) == (NONE, 1)
    assert world.state() == "CompleteAbort"
    assert world.end(aborted, is_commit=False, version=2).producer_epoch == 2


def test_an_empty_abort_right_after_a_commit_waits_for_its_markers(make_world):
    world = make_world(busy_wait_ms_max=1000)
    first = world.init()
    world.add(first, version=2)
    world.hold_markers = True
    second = world.end(first, version=2)
    request = world.end(second, is_commit=False, version=2)
    assert request not in world.replies, "it waits: the markers of the commit are not written"
    world.mark()
    aborted = world.replies[request]
    assert (aborted.error, aborted.producer_epoch) == (NONE, second.producer_epoch + 1)


def test_an_empty_abort_after_the_last_epoch_is_asked_to_retry(world):
    world.init()
    world, last = at_epoch(world, "t", 2**15 - 2)
    world.add(last, version=2)
    world.hold_markers = True
    fresh = world.end(last, version=2)
    assert world.end(fresh, is_commit=False, version=2).error is BUSY
    world.mark()
    aborted = world.end(fresh, is_commit=False, version=2)
    assert (aborted.error, aborted.producer_id) == (NONE, fresh.producer_id)
    assert aborted.producer_epoch == 1


def test_the_last_epoch_ends_with_another_producer_id(world):
    world.init()
    world, last = at_epoch(world, "t", 2**15 - 2)
    world.add(last, version=2)
    world.hold_markers = True
    fresh = world.end(last, version=2)
    assert fresh.producer_id != last.producer_id
    assert fresh.producer_epoch == 0
    marker = world.asked[0]
    assert (marker.producer_id, marker.producer_epoch) == (last.producer_id, 2**15 - 1)
    assert world.add(fresh, version=2) is BUSY
    assert world.end(last, version=2).error is BUSY
    world.mark()
    again = world.end(last, version=2)
    assert (again.error, again.producer_id) == (NONE, fresh.producer_id)
    assert world.add(fresh, version=2) is NONE
    assert world.end(last, version=2).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# ---- time


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(world):
    producer = world.init(timeout_ms=5_000)
    world.add(producer)
    world.tick(4.9)
    assert world.state() == "Ongoing"
    world.tick(0.2)
    assert world.state() == "CompleteAbort"
    assert world.end(producer).error is ErrorCode.PRODUCER_FENCED
    assert world.asked[0].producer_epoch == producer.producer_epoch + 1


def test_more_partitions_do_not_give_a_transaction_more_time(world):
    producer = world.init(timeout_ms=5_000)
    world.add(producer)
    world.tick(4.0)
    world.add(producer, world.tp("b"))
    world.tick(1.1)
    assert world.state() == "CompleteAbort"


def test_a_client_of_version_2_goes_on_after_a_timeout(world):
    producer = world.init(timeout_ms=5_000)
    world.add(producer, version=2)
    world.tick(6)
    assert world.end(producer, version=2).error is ErrorCode.INVALID_TXN_STATE
    aborted = world.end(producer, is_commit=False, version=2)
    assert (aborted.error, aborted.producer_epoch) == (NONE, 1)


def test_the_timeout_counts_on_under_the_next_coordinator(world):
    producer = world.init(timeout_ms=5_000)
    world.add(producer)
    world.now += 3
    heir = world.crash()
    heir.tick(1.9)
    assert heir.state() == "Ongoing"
    heir.tick(0.2)
    assert heir.state() == "CompleteAbort"


def test_an_abort_that_could_not_be_stored_is_tried_again(world):
    producer = world.init(timeout_ms=5_000)
    world.add(producer)
    world.hold_writes = True
    world.tick(6)
    world.refuse()
    assert world.state() == "Ongoing"
    world.hold_writes = False
    world.tick(2)
    assert world.state() == "CompleteAbort"


def test_an_unused_id_is_forgotten(make_world):
    world = make_world(id_expiry_ms=10_000, id_expiry_check_ms=1_000)
    world.init()
    busy = world.init("u", timeout_ms=100_000)
    world.add(busy, name="u")
    world.tick(5)
    assert world.state() == "Empty"
    world.tick(6)
    assert world.coordinator.describe("t").error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert world.state("u") == "Ongoing"
    assert world.crash().coordinator.describe("t").error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_a_producer_that_goes_on_after_its_id_expired_gets_a_new_one(make_world):
    world = make_world(id_expiry_ms=10_000, id_expiry_check_ms=1_000)
    old = world.init()
    world.tick(11)
    fresh = world.init(producer_id=old.producer_id, producer_epoch=old.producer_epoch)
    assert fresh.producer_id != old.producer_id
    assert (fresh.error, fresh.producer_epoch) == (NONE, 0)


# ---- loading, closing, reading


def test_nothing_is_answered_before_everything_is_loaded(make_world):
    world = make_world()
    world.init()
    heir = type(world)(world.log)
    assert heir.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert heir.coordinator.describe("t").error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert heir.coordinator.list_transactions()[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert heir.load().init().producer_epoch == 1


def test_closing_answers_all_waiting_requests(make_world):
    world = make_world(busy_wait_ms_max=100)
    producer = world.init()
    world.hold_writes = True
    request, parked = world.add(producer), world.init()
    world.run(world.coordinator.close(world.now))
    assert set(world.replies[request].errors.values()) == {ErrorCode.NOT_COORDINATOR}
    assert world.replies[parked].error is ErrorCode.NOT_COORDINATOR
    assert world.init().error is ErrorCode.NOT_COORDINATOR
    assert world.coordinator.next_deadline() is None
    world.store()
    assert not world.asked


def test_transactions_are_listed_by_state_producer_and_duration(world):
    one = world.init("one")
    world.add(one, name="one")
    world.now += 10
    two = world.init("two")
    world.add(two, name="two")
    world.init("three")
    names = lambda **wanted: [  # noqa: E731
        listed.transactional_id for listed in world.coordinator.list_transactions(**wanted)[1]
    ]
    assert names() == ["one", "two", "three"]
    assert names(states=["Ongoing"]) == ["one", "two"]
    assert names(producer_ids=[two.producer_id]) == ["two"]
    assert names(duration_ms_min=5_000) == ["one"]
    assert world.coordinator.describe("one").started_at == 1_700_000_000_000
    totals = world.coordinator.totals()
    assert (totals.open, totals.oldest_started_at) == (2, 1_700_000_000_000)
    assert totals.ids_by_state == {"Ongoing": 2, "Empty": 1}
