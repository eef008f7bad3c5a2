"""The group coordinator: members, generations and committed offsets. Sans-IO.

Events in (`events`), effects out (`results`), one door (`coordinator.Coordinator`).
"""
