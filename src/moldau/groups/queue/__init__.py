"""Queue groups: leases on single messages of one partition. Sans-IO.

A command is decided against the state (`decide`), becomes at most one record (`records`), and only
that record, once committed, changes the state (`state`). What is stored of many queues is kept by
a `ledger`. docs/internals/queues.md tells how they work together.
"""
