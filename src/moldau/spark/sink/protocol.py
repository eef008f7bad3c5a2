"""Responsible for writing a batch exactly once: what tasks and the driver do, in which order.

A task writes in a transaction of its own, leaves it open, and tells the driver which one it is.
When all tasks are done the driver writes one decision and only then ends the transactions, one
after another. Whoever comes after a crash reads first: a batch that was decided is finished and not
written again; one that was not is written anew, and what was left open of it is aborted.

What makes this safe against those that were taken for dead and are not:

- a run claims its query before it writes. Whatever a run before it decides from then on does not
  count, so its open transactions may be aborted;
- the number of the claim is part of the name of each transaction. Nobody aborts transactions of a
  claim above its own;
- a transaction belongs to one attempt of one task. The attempt goes on with the name that served
  its task in the batch before, so that a query needs no more names than it has tasks; if another
  attempt was faster, it takes a name that never was. Which of two was faster is said by the
  coordinator: it hands the name over to whoever knows its last epoch, and to nobody any more once
  a partition was entered. Should it have been two until then, the last one's nonce is stored.

All that leaves this process goes through a `BrokerPort`, and any call of it may be the last.
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
from moldau.spark.sink.sink_client import Place
from moldau.spark.sink.sink_client import SinkClient as Port

Begin = Callable[[Place], Transaction]

NO_CLAIM: Final = 0
_CLAIM_TRIES_MAX: Final = 100
_APP_PREFIX: Final = "app_"
_NOBODY: Final = "nobody-"


class SupersededError(ClientError):
    """Another run of the same query writes now."""


class LostTransactionError(ClientError):
    """A decided transaction was aborted by someone else: its records are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttempt:
    """One attempt to write one part of a batch."""

    query: str
    run: str
    """Another one with every start of the query."""
    batch: int
    number: int
    """Of the part; every attempt writes the same."""
    attempt: int
    """Never the same twice in a run."""
    is_versioned: bool = False
    """Of a table: what was decided before is passed over, however long ago that was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task tells the driver."""

    task: TaskAttempt
    claim: int = NO_CLAIM
    """NO_CLAIM if the version was there before, so that there was no need for one."""
    transaction: Transaction | None = None
    """None if there was nothing to write, or the batch had been decided before."""


def prefix_of(query: str) -> str:
    return f"moldau-spark-{query}-"


def claim_of(transactional_id: str, query: str) -> int | None:
    """The claim that a transaction is of; None if it is none of this query's."""
    found = re.match(rf"{re.escape(prefix_of(query))}(\d+)(-|$)", transactional_id)
    return None if found is None else int(found[1])


# -- tasks


def run_task(port: Port, task: TaskAttempt, write: Callable[[Begin], bool]) -> TaskResult:
    """Write a part, unless its batch was decided.

    `write` calls what it is given once it has something to write, with the partition that is to be
    written to first, and says whether it did; it returns when all of it is stored.
    """
    if task.is_versioned:
        ledger = port.read(task.query)
        if ledger.is_decided(task.batch) and ledger.is_finished:
            # Whoever writes newer versions is not to be disturbed.
            return TaskResult(task=task)
    ledger, claim = claimed(port, task.query, task.run, may_return=task.is_versioned)
    if not task.is_versioned:
        check_order(ledger, task.batch)
    if ledger.is_decided(task.batch):
        return TaskResult(task=task, claim=claim)
    begun: list[Transaction] = []

    def begin(place: Place) -> Transaction:
        if not begun:
            begun.append(_begin(port, ledger, claim, task, place))
        return begun[0]

    try:
        is_written = write(begin)
    except BaseException:
        # Nobody was told of it, so nobody can have decided for it. If this fails too, the
        # driver's next commit or the next run ends it.
        with suppress(ClientError):
            port.abort([transaction.name for transaction in begun])
        raise
    return TaskResult(
        task=task, claim=claim, transaction=begun[0] if is_written and begun else None
    )


def _begin(port: Port, ledger: Ledger, claim: int, task: TaskAttempt, place: Place) -> Transaction:
    before = last_of(ledger, claim).get(task.number)
    if before is not None:
        follower = port.go_on(before, task.attempt)
        if follower is not None:
            port.enter(follower, place)
            # From here on nobody else can get it, so this tells whose it is.
            if port.has_nonce(follower, task.attempt):
                return follower
    return port.begin(f"{prefix_of(task.query)}{claim}-{task.number}-{task.attempt}")


def last_of(ledger: Ledger, claim: int) -> dict[int, Transaction]:
    """The last transaction of each task, if it was one of this claim and has ended."""
    decided = ledger.decision
    if decided is None or decided.claim != claim or not ledger.is_finished:
        return {}
    return transactions_of((*decided.spare, *decided.parts))


def claimed(port: Port, query: str, run: str, *, may_return: bool = False) -> tuple[Ledger, int]:
    """Make the run the owner of its query, if it is not; what is decided, and its claim's number.

    Whoever makes it the owner cleans up after the runs before it. Raises SupersededError if the
    run was the owner and is not any more; with `may_return` only if another one is.
    """
    nonce = uuid.uuid4().hex
    for _ in range(_CLAIM_TRIES_MAX):
        ledger = port.read(query)
        owner = ledger.owner
        if ledger.is_over:
            raise superseded(query)
        if owner is not None and owner.run == run:
            if owner.nonce == nonce:
                finish(port, ledger)
                sweep(port, ledger, claim_max=owner.number - 1)
                ledger = port.read(query)
            return ledger, owner.number
        # Whoever wrote last may have given up.
        is_nobodys = owner is not None and owner.run.startswith(_NOBODY)
        if run in ledger.runs and not (may_return and is_nobodys):
            raise superseded(query)
        port.append(ledger, [Claim(number=ledger.next_number, run=run, nonce=nonce)])
    raise SupersededError(f"many runs of query {query} want to write at once")


# -- the driver


def commit_batch(port: Port, done: Sequence[TaskResult], batch: int) -> None:
    """All tasks are done: decide for what they wrote, and end their transactions.

    Raises SupersededError if another run took over, and LostTransactionError if records of a
    decided batch are missing. Nothing is decided if a transaction would not live long enough.
    """
    query, run, claim = _told(done)
    ledger = port.read(query)
    if ledger.owner is None or (ledger.owner.run, ledger.owner.number) != (run, claim):
        raise superseded(query)
    check_order(ledger, batch)
    # What the batch before left behind, if whoever was to do it died.
    finish(port, ledger)
    if not ledger.is_decided(batch):
        ledger = _decide(port, ledger, done, batch)
        finish(port, ledger)
    sweep(port, ledger, claim_max=claim)


def _decide(port: Port, ledger: Ledger, done: Sequence[TaskResult], batch: int) -> Ledger:
    query, _, claim = _told(done)
    parts = {each.task.number: each.transaction for each in done if each.transaction is not None}
    expiring = port.expiring(parts.values())
    for part in parts.values():
        if expiring.get(part.name, True):
            raise ClientError(
                f"batch {batch} took so long that the transaction {part.name} "
                + ("is about to end" if part.name in expiring else "has ended"),
                hint="raise option kafka.transaction.timeout.ms (and transaction.timeout_ms_max of "
                "the brokers), or lower maxOffsetsPerTrigger",
            )
    spare = {n: last for n, last in last_of(ledger, claim).items() if n not in parts}
    decision = Decision(claim=claim, batch=batch, parts=parts_of(parts), spare=parts_of(spare))
    port.append(ledger, [decision], ledger.deletable())
    ledger = port.read(query)
    found = ledger.decision
    if found is None or (found.claim, found.batch) != (claim, batch):
        raise superseded(query)
    return ledger


def abort_batch(port: Port, done: Sequence[TaskResult], batch: int) -> None:
    """The batch failed, perhaps while it was committed. What is known of it is aborted."""
    if not done:
        # Not even the query is known. The next run cleans up.
        return
    query, run, _ = _told(done)
    ledger = port.read(query)
    if ledger.is_decided(batch) or ledger.owner is None or ledger.owner.run != run:
        # Whoever comes next finishes the one, and cleans up after the other.
        return
    abandon(port, query)


def abandon(port: Port, query: str) -> None:
    """Nobody goes on with a query for now: finish what was decided, abort all else.

    A decision may be on its way and still arrive. So the query is claimed first, for nobody: after
    that it is settled whether there is one.
    """
    ledger = port.read(query)
    nonce = uuid.uuid4().hex
    port.append(ledger, [Claim(number=ledger.next_number, run=_NOBODY + nonce, nonce=nonce)])
    ledger = port.read(query)
    finish(port, ledger)
    owner = ledger.owner
    if owner is not None and owner.nonce == nonce:
        sweep(port, ledger, claim_max=owner.number - 1)


def forget(port: Port, query: str) -> None:
    """A table is written, or given up: delete what stands about it, since nobody comes back."""
    ledger = port.read(query)
    port.append(ledger, [], [*ledger.keys, ledger.over_key])


# -- the driver of a table that has a version


def commit_version(port: Port, done: Sequence[TaskResult], version: int) -> None:
    """All tasks are done: as `commit_batch`, but a version that was decided before is passed over.

    Raises what that raises; SupersededError also if tasks wrote what somebody else, who writes for
    the same application at the same time, decided first.
    """
    at_work = [each for each in done if each.claim != NO_CLAIM]
    if not at_work:
        return
    query, _, claim = _told(at_work)
    ledger = port.read(query)
    decided = ledger.decision
    if decided is None or decided.batch < version:
        commit_batch(port, at_work, version)
        return
    is_written = any(each.transaction is not None for each in at_work)
    if is_written and (decided.claim, decided.batch) != (claim, version):
        raise superseded(query)
    finish(port, ledger)


def abort_version(port: Port, done: Sequence[TaskResult]) -> None:
    """The write failed, perhaps while it was committed. Whoever else writes goes on."""
    at_work = [each for each in done if each.claim != NO_CLAIM]
    if not at_work:
        # Tasks that failed aborted what they began; the next write does the rest.
        return
    query, run, _ = _told(at_work)
    ledger = port.read(query)
    if ledger.owner is None or ledger.owner.run == run:
        abandon(port, query)
        return
    # Another run has claimed since: what counted of ours by then is in the ledger, all else is
    # nobody's.
    told = [each.transaction.name for each in at_work if each.transaction is not None]
    port.abort([name for name in told if name not in ledger.decided_names])


def finish(port: Port, ledger: Ledger) -> None:
    """End the transactions of what was decided last, unless it is known that they have ended."""
    decision = ledger.decision
    if decision is None or ledger.is_finished:
        return
    lost = port.commit(transactions_of(decision.parts).values())
    if lost:
        raise _lost(ledger.query, decision, lost)
    port.append(ledger, [Finish(claim=decision.claim, batch=decision.batch)])


def sweep(port: Port, ledger: Ledger, *, claim_max: int) -> None:
    """Abort what attempts that came to nothing left open, up to a claim that is not above ours."""
    decided = ledger.decided_names
    for name in port.open_ids(prefix_of(ledger.query)):
        claim = claim_of(name, ledger.query)
        if claim is not None and claim <= claim_max and name not in decided:
            port.abort([name])


# -- what can be wrong


def check_order(ledger: Ledger, batch: int) -> None:
    last = ledger.last_batch
    if last > batch:
        raise ClientError(
            f"the checkpoint goes on with batch {batch}, but batch {last} of this query "
            "was written already: is it an older copy?",
            hint="begin with a new checkpointLocation and startingOffsets",
        )


def query_of_app(app_id: str) -> str:
    """What an application is called where it takes the place of a query.

    No two of them are the same, and none is the beginning of another up to a `-` or `/`: names of
    transactions and keys of decisions are taken apart there.
    """
    return _APP_PREFIX + quote(app_id, safe="").replace("-", "%2D")


def app_of(query: str) -> str | None:
    """The application that a query stands for; None if it is a query."""
    return unquote(query.removeprefix(_APP_PREFIX)) if query.startswith(_APP_PREFIX) else None


def superseded(query: str) -> SupersededError:
    app = app_of(query)
    if app is not None:
        who, hint = f"writer of txnAppId {app}", "do two drivers write with the same txnAppId?"
    else:
        who, hint = f"run of query {query}", "is it running twice with the same checkpointLocation?"
    return SupersededError(
        f"another {who} has taken over: this one may not write any more", hint=hint
    )


def _lost(query: str, decision: Decision, lost: Sequence[Transaction]) -> LostTransactionError:
    app = app_of(query)
    if app is not None:
        what = f"txnVersion {decision.batch} of txnAppId {app}"
        remedy = "Write the missing rows again without txnAppId, then go on with a new txnAppId"
    else:
        what = f"batch {decision.batch} of query {query}"
        remedy = (
            "Write the batch again from its offsets in the checkpoint, then begin with a new "
            "checkpointLocation behind it"
        )
    names = ", ".join(each.name for each in lost)
    return LostTransactionError(
        f"{what} was decided, but its transactions {names} were aborted before they could be "
        "ended: its records are missing",
        hint="nobody came back within kafka.transaction.timeout.ms, or someone aborted "
        f"transactions. {remedy}",
    )


def _told(done: Sequence[TaskResult]) -> tuple[str, str, int]:
    """Query, run and claim that all tasks agree on."""
    found = {(each.task.query, each.task.run, each.claim) for each in done}
    if len(found) != 1:
        raise ClientError(f"tasks of {len(found)} different runs in one batch")
    return found.pop()
