"""Segments, indexes, control journal, recovery, retention. The only opener of data files."""
