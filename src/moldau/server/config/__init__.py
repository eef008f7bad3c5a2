"""The broker's configuration: a frozen schema, and the loader that fills it from its layers."""
