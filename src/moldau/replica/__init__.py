"""Runs Raft groups over partition logs: executes the effects of the Raft core on disk and peers."""
