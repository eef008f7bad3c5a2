"""Ready-made pipelines between topics and a lake: archive, compact, replay, aggregate, audit."""
