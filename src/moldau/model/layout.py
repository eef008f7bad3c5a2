"""Names in a data directory that several packages use."""

LOCK_FILE = "lock"
"""Locked (flock) by the broker that uses the directory; contains its process id."""

ADMIN_TOKEN_FILE = "admin.token"
"""Proves that its reader may administer the broker; new at each start."""

SECRET_FILE = "cluster.secret"
"""What the brokers of a cluster prove to each other that they know."""
