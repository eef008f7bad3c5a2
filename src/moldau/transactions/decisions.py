"""What a request to the transaction coordinator leads to; `decide` has the rules."""

from msgspec import Struct

from moldau.model.errors import ErrorCode
from moldau.transactions.records import StoredTransaction
from moldau.transactions.results import NeedsProducerId


class Rejected(Struct, frozen=True):
    """Reply with this error."""

    error: ErrorCode


class NoChange(Struct, frozen=True):
    """Already done: reply with the stored state."""


class WriteState(Struct, frozen=True):
    """Write this state, then reply."""

    stored: StoredTransaction
    retries: bool = False
    """The write only aborts the open transaction; afterwards the request is decided again."""


class WaitForEnd(Struct, frozen=True):
    """A transaction is ending: the request must wait."""


TransactionDecision = Rejected | NoChange | WriteState | WaitForEnd | NeedsProducerId
