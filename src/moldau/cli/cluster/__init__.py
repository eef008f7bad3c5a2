"""`moldau cluster`: several brokers on this machine, and the health of a cluster."""
