"""Server-side assignors of the consumer protocol (KIP-848). Pure functions.

`interface` defines their input and output; `uniform` and `range` are built in. The server loads
others through the entry point `moldau.assignors`.
"""
