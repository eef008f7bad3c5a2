"""Who gets which partitions: the assignors of the next-generation protocol. Pure functions.

`interface` says what an assignor is given and gives back; `uniform` and `range` are the built-in
ones. Others are handed in by the server, which finds them by the entry point `moldau.assignors`.
"""
