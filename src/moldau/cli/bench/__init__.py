"""`moldau bench`: throughput and latency."""
