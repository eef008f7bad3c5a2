"""Requests that only another broker can serve: this one asks it, and streams the reply back.

`asking.py` runs on the broker that the client chose, `serving.py` on the other, and `messages.py`
is what they send to each other.
"""
