"""Groups of the next-generation protocol (KIP-848): the broker assigns, members follow in steps.

`consumers` is the door, `beat` decides a heartbeat, `reconcile` moves one member a step towards its
target, `state` is what is stored, `records` its bytes. Committed offsets and the deletion of groups
are the same for all groups.
"""
