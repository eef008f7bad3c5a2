"""`moldau pipeline`: jobs on Spark."""
