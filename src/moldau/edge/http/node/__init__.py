"""One HTTP address for a node of several processes: each asks the others for what they all have."""
