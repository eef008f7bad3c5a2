"""Compaction of logs: of each key the newest record stays.

job.py           the data types: request, job, result, and the state between compactions
rules.py         which records stay; key_map.py finds the newest record of each key
swap.py          selects the segments of a log, and swaps in the result
run.py           executes a job; segment_writer.py writes its new segments
worker.py        the process that executes jobs for the broker (data/cleaner_process.py)
checkpoint.py    the file `cleaned`, whose replacement is the swap

Names that are stored or that users see say "clean" as Kafka does: the file `cleaned`, the settings
and metrics of the log cleaner.
"""
