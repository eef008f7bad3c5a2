"""The transaction coordinator: producer epochs and open transactions. Sans-IO.

Events in (`events`), effects out (`results`), one door (`coordinator.Coordinator`). What a request
leads to is decided by plain functions of the stored state (`decide`).
"""
