"""Reading topics: what to read, who reads which offsets, and records as Arrow columns."""
