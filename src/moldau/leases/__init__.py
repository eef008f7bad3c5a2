"""Queue groups: leases on single messages of one partition. Sans-IO.

A command is decided against the state (`decide`), becomes at most one record (`records`), and only
that record, once committed, changes the state (`state`). A `ledger` stores the records of many
queues. See docs/internals/queues.md.
"""
