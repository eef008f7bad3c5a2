"""The transaction coordinator: producer epochs and open transactions. Sans-IO.

Events in (`events`), effects out (`results`); `coordinator.TransactionCoordinator` is the entry
point. Requests are decided by pure functions of the stored state (`decide`).
"""
