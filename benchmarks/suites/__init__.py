"""The measurements. Each suite is a generator of steps over one `Bench`, and records metrics."""
