"""The settings of each kind of pipeline: what a file declares, and what the command line offers."""
