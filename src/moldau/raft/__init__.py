"""The consensus core: events in, effects out. Sans-IO."""
