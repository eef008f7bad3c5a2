"""The exactly-once protocol: the steps of tasks and driver to write a batch.

Each task writes in its own transaction, leaves it open, and reports it to the driver. When all
tasks are done, the driver writes one decision, and only then commits the transactions one by one.
After a crash the next run reads the decisions first: a decided batch is finished, not written
again; an undecided one is aborted and written again.

Why this is safe against processes that were presumed dead and are not:

- a run claims its query before it writes. Later decisions of earlier runs are invalid, so their
  open transactions may be aborted;
- the claim number is part of each transaction name. No process aborts transactions of a higher
  claim than its own;
- a transaction belongs to one attempt of one task. The attempt reuses the name of its task in the
  previous batch, so a query needs no more names than it has tasks; if another attempt was faster,
  it takes a new name. The coordinator decides which was faster: it gives the name to any caller
  that knows the last epoch, until a partition is added. If there were two callers by then, the
  nonce of the last one is stored.

All requests go through a `SinkClient`, and the process may die at any of them.
"""

import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from moldau.client.errors import ClientError
from moldau.client.wire.transactions import TransactionalProducer as Transaction
from moldau.spark.sink.decisions import Claim, Decision, Finish, Ledger, parts_of, transactions_of
from moldau.spark.sink.sink_client import PartitionKey, SinkClient

Begin = Callable[[PartitionKey], Transaction]

NO_CLAIM: Final = 0
_CLAIM_TRIES_MAX: Final = 100
_APP_PREFIX: Final = "app_"
_NO_RUN: Final = "nobody-"
"""Prefix of the run in a claim that only ends earlier claims. Stored: do not change."""


class SupersededError(ClientError):
    """Another run of the same query has taken over."""


class LostTransactionError(ClientError):
    """A decided transaction was aborted before it was committed: its records are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttempt:
    """One attempt to write one part of a batch."""

    query: str
    run: str
    """A new id for each start of the query."""
    batch: int
    number: int
    """Of the task; all its attempts write the same rows."""
    attempt: int
    """Unique in a run."""
    is_versioned: bool = False
    """A batch write with a version: skipped if it was decided at any earlier time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task reports to the driver."""

    task: TaskAttempt
    claim: int = NO_CLAIM
    """NO_CLAIM if the version was already written, so that no claim was needed."""
    transaction: Transaction | None = None
    """None if there was nothing to write, or the batch had been decided before."""


def prefix_of(query: str) -> str:
    return f"moldau-spark-{query}-"


def claim_of(transactional_id: str, query: str) -> int | None:
    """The claim number in a transaction name; None if it is not a name of this query."""
    found = re.match(rf"{re.escape(prefix_of(query))}(\d+)(-|$)", transactional_id)
    return None if found is None else int(found[1])


# -- tasks


def run_task(client: SinkClient, task: TaskAttempt, write: Callable[[Begin], bool]) -> TaskResult:
    """Writes the rows of a task, unless its batch was decided.

    `write` calls its argument with the first partition as soon as it has a row, and returns, when
    all rows are stored, whether there were any.
    """
    if task.is_versioned:
        ledger = client.read(task.query)
        if ledger.is_decided(task.batch) and ledger.is_finished:
            # Do not disturb a writer of newer versions with a claim.
            return TaskResult(task=task)
    ledger, claim = claimed(client, task.query, task.run, may_return=task.is_versioned)
    if not task.is_versioned:
        check_order(ledger, task.batch)
    if ledger.is_decided(task.batch):
        return TaskResult(task=task, claim=claim)
    begun: list[Transaction] = []

    def begin(key: PartitionKey) -> Transaction:
        if not begun:
            begun.append(_begin(client, ledger, claim, task, key))
        return begun[0]

    try:
        is_written = write(begin)
    except BaseException:
        # It was not reported, so it cannot be part of a decision. If this fails, too, the
        # driver's next commit or the next run aborts it.
        with suppress(ClientError):
            client.abort([transaction.name for transaction in begun])
        raise
    return TaskResult(
        task=task, claim=claim, transaction=begun[0] if is_written and begun else None
    )


def _begin(
    client: SinkClient, ledger: Ledger, claim: int, task: TaskAttempt, key: PartitionKey
) -> Transaction:
    before = last_of(ledger, claim).get(task.number)
    if before is not None:
        successor = client.next_transaction(before, task.attempt)
        if successor is not None:
            client.add_partition(successor, key)
            # From here on no other attempt can get it, so the stored nonce is final.
            if client.has_nonce(successor, task.attempt):
                return successor
    return client.begin(f"{prefix_of(task.query)}{claim}-{task.number}-{task.attempt}")


def last_of(ledger: Ledger, claim: int) -> dict[int, Transaction]:
    """The last transaction of each task, if it is of this claim and has ended."""
    decided = ledger.decision
    if decided is None or decided.claim != claim or not ledger.is_finished:
        return {}
    return transactions_of((*decided.spare, *decided.parts))


def claimed(
    client: SinkClient, query: str, run: str, *, may_return: bool = False
) -> tuple[Ledger, int]:
    """Makes the run the owner of its query; returns the ledger and the claim number.

    The process whose claim succeeds cleans up after earlier runs. Raises SupersededError if the run
    was the owner before and lost that; with `may_return` only if there is another owner.
    """
    nonce = uuid.uuid4().hex
    for _ in range(_CLAIM_TRIES_MAX):
        ledger = client.read(query)
        owner = ledger.owner
        if ledger.is_over:
            raise superseded(query)
        if owner is not None and owner.run == run:
            if owner.nonce == nonce:
                finish(client, ledger)
                sweep(client, ledger, claim_max=owner.number - 1)
                ledger = client.read(query)
            return ledger, owner.number
        # The last owner may have abandoned the query.
        is_abandoned = owner is not None and owner.run.startswith(_NO_RUN)
        if run in ledger.runs and not (may_return and is_abandoned):
            raise superseded(query)
        client.append(ledger, [Claim(number=ledger.next_number, run=run, nonce=nonce)])
    raise SupersededError(
        f"cannot claim query {query}: {_CLAIM_TRIES_MAX} attempts lost against other runs",
        hint="is it running several times with the same checkpointLocation?",
    )


# -- the driver


def commit_batch(client: SinkClient, done: Sequence[TaskResult], batch: int) -> None:
    """Called when all tasks are done: writes the decision and commits their transactions.

    Raises SupersededError if another run took over, and LostTransactionError if records of a
    decided batch are lost. Decides nothing if a transaction would expire too soon.
    """
    query, run, claim = _common_claim(done)
    ledger = client.read(query)
    if ledger.owner is None or (ledger.owner.run, ledger.owner.number) != (run, claim):
        raise superseded(query)
    check_order(ledger, batch)
    # The previous driver may have died before it finished the previous batch.
    finish(client, ledger)
    if not ledger.is_decided(batch):
        ledger = _decide(client, ledger, done, batch)
        finish(client, ledger)
    sweep(client, ledger, claim_max=claim)


def _decide(client: SinkClient, ledger: Ledger, done: Sequence[TaskResult], batch: int) -> Ledger:
    query, _, claim = _common_claim(done)
    parts = {each.task.number: each.transaction for each in done if each.transaction is not None}
    expiring = client.expiring(parts.values())
    for part in parts.values():
        if expiring.get(part.name, True):
            raise ClientError(
                f"batch {batch} was not committed: it took so long that the transaction "
                f"{part.name} " + ("is about to expire" if part.name in expiring else "expired"),
                hint="raise option kafka.transaction.timeout.ms (and transaction.timeout_ms_max of "
                "the brokers), or lower maxOffsetsPerTrigger",
            )
    spare = {n: last for n, last in last_of(ledger, claim).items() if n not in parts}
    decision = Decision(claim=claim, batch=batch, parts=parts_of(parts), spare=parts_of(spare))
    client.append(ledger, [decision], ledger.deletable())
    ledger = client.read(query)
    found = ledger.decision
    if found is None or (found.claim, found.batch) != (claim, batch):
        raise superseded(query)
    return ledger


def abort_batch(client: SinkClient, done: Sequence[TaskResult], batch: int) -> None:
    """Called when the batch failed, possibly during its commit: aborts its transactions."""
    if not done:
        # The query is unknown. The next run cleans up.
        return
    query, run, _ = _common_claim(done)
    ledger = client.read(query)
    if ledger.is_decided(batch) or ledger.owner is None or ledger.owner.run != run:
        # The next run finishes the batch, or the current owner has cleaned up.
        return
    abandon(client, query)


def abandon(client: SinkClient, query: str) -> None:
    """Finishes what was decided and aborts all else.

    First claims the query without a run, which makes decisions in flight invalid.
    """
    ledger = client.read(query)
    nonce = uuid.uuid4().hex
    client.append(ledger, [Claim(number=ledger.next_number, run=_NO_RUN + nonce, nonce=nonce)])
    ledger = client.read(query)
    finish(client, ledger)
    owner = ledger.owner
    if owner is not None and owner.nonce == nonce:
        sweep(client, ledger, claim_max=owner.number - 1)


def forget(client: SinkClient, query: str) -> None:
    """Deletes all entries of a batch write that is done or was aborted."""
    ledger = client.read(query)
    client.append(ledger, [], [*ledger.keys, ledger.over_key])


# -- the driver of a batch write with a version


def commit_version(client: SinkClient, done: Sequence[TaskResult], version: int) -> None:
    """As `commit_batch`, but skips a version that was decided before.

    SupersededError also if another writer of the application decided this version first.
    """
    at_work = [each for each in done if each.claim != NO_CLAIM]
    if not at_work:
        return
    query, _, claim = _common_claim(at_work)
    ledger = client.read(query)
    decided = ledger.decision
    if decided is None or decided.batch < version:
        commit_batch(client, at_work, version)
        return
    is_written = any(each.transaction is not None for each in at_work)
    if is_written and (decided.claim, decided.batch) != (claim, version):
        raise superseded(query)
    finish(client, ledger)


def abort_version(client: SinkClient, done: Sequence[TaskResult]) -> None:
    """Called when the write failed, possibly during its commit. Does not disturb other writers."""
    at_work = [each for each in done if each.claim != NO_CLAIM]
    if not at_work:
        # Failed tasks aborted their transactions; the next write aborts the rest.
        return
    query, run, _ = _common_claim(at_work)
    ledger = client.read(query)
    if ledger.owner is None or ledger.owner.run == run:
        abandon(client, query)
        return
    # Another run has claimed since: our valid decision, if any, is in the ledger. Abort the rest.
    names = [each.transaction.name for each in at_work if each.transaction is not None]
    client.abort([name for name in names if name not in ledger.decided_names])


def finish(client: SinkClient, ledger: Ledger) -> None:
    """Commits the transactions of the last decision, unless it is finished."""
    decision = ledger.decision
    if decision is None or ledger.is_finished:
        return
    lost = client.commit(transactions_of(decision.parts).values())
    if lost:
        raise _lost(ledger.query, decision, lost)
    client.append(ledger, [Finish(claim=decision.claim, batch=decision.batch)])


def sweep(client: SinkClient, ledger: Ledger, *, claim_max: int) -> None:
    """Aborts leftover open transactions of claims up to `claim_max`, which must not exceed ours."""
    decided = ledger.decided_names
    for name in client.open_ids(prefix_of(ledger.query)):
        claim = claim_of(name, ledger.query)
        if claim is not None and claim <= claim_max and name not in decided:
            client.abort([name])


# -- errors and names


def check_order(ledger: Ledger, batch: int) -> None:
    last = ledger.last_batch
    if last > batch:
        raise ClientError(
            f"the checkpoint continues with batch {batch}, but batch {last} of this query was "
            "already written: is the checkpoint an older copy?",
            hint="start with a new checkpointLocation and startingOffsets",
        )


def query_of_app(app_id: str) -> str:
    """The query name that stands for an application.

    Without `-` and `/`, at which transaction names and keys of decisions are split.
    """
    return _APP_PREFIX + quote(app_id, safe="").replace("-", "%2D")


def app_of(query: str) -> str | None:
    """The application that a query name stands for; None for a real query."""
    return unquote(query.removeprefix(_APP_PREFIX)) if query.startswith(_APP_PREFIX) else None


def superseded(query: str) -> SupersededError:
    app = app_of(query)
    if app is not None:
        other, hint = f"writer of txnAppId {app}", "do two drivers write with the same txnAppId?"
    else:
        other = f"run of query {query}"
        hint = "is it running twice with the same checkpointLocation?"
    return SupersededError(f"another {other} has taken over: this one must not write", hint=hint)


def _lost(query: str, decision: Decision, lost: Sequence[Transaction]) -> LostTransactionError:
    app = app_of(query)
    if app is not None:
        what = f"txnVersion {decision.batch} of txnAppId {app}"
        remedy = "Write the lost rows again without txnAppId, then continue with a new txnAppId"
    else:
        what = f"batch {decision.batch} of query {query}"
        remedy = (
            "Write the batch again from its offsets in the checkpoint, then start after it with a "
            "new checkpointLocation"
        )
    names = ", ".join(each.name for each in lost)
    return LostTransactionError(
        f"{what} was decided, but its transactions {names} were aborted before they were "
        "committed: their records are lost",
        hint="the query was down for longer than kafka.transaction.timeout.ms, or the transactions "
        f"were aborted by hand. {remedy}",
    )


def _common_claim(done: Sequence[TaskResult]) -> tuple[str, str, int]:
    """The query, run and claim of all tasks."""
    found = {(each.task.query, each.task.run, each.claim) for each in done}
    if len(found) != 1:
        raise ClientError(f"internal error: tasks of {len(found)} different runs in one batch")
    return found.pop()
