"""Work queues and ordered groups: leases, redelivery, dead letters, and their storage."""
