"""What Spark reads from topics per second, against what Spark can take at all, in one run."""
