"""The Raft core: events in, effects out. Sans-IO."""
