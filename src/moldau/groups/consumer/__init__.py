"""Groups of the consumer protocol (KIP-848): the broker assigns, members reconcile in steps.

`consumer_groups` is the entry point, `heartbeat` decides a heartbeat, `reconcile` moves a member
one step towards its target, `state` is the stored state, `records` its format. Committed offsets
and the deletion of groups are the same for both protocols.
"""
