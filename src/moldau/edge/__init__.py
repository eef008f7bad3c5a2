"""The doors: thin adapters from a protocol to the service layer."""
