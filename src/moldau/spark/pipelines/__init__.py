"""What stands between topics and a lake, ready-made: archive, compact, replay, aggregate, audit."""
