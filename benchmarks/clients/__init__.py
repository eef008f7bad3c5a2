"""The loads. Each runs as `python -m benchmarks.clients KIND SPEC` in a process of its own.

A load is a function that takes its specification, connects, prepares and warms up, and returns the
function that runs it. Loads on other systems write that system's protocol by hand with frames
prepared beforehand: a slow client library would measure itself and flatter our broker.
"""
