"""The group coordinator: members, generations and committed offsets. Sans-IO.

Events in (`events`), effects out (`results`); `coordinator.GroupCoordinator` is the entry point.
"""
