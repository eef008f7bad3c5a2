"""`make demo`: three brokers, live pipelines, a leader that dies, and proof that nothing is lost.

See docs/start/demo.md.
"""
