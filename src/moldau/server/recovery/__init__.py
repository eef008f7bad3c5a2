"""Recovery of a cluster whose metadata has lost its majority for good: all brokers are stopped."""
