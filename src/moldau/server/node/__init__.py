"""One node: several broker processes with one configuration, one data root and one address."""
