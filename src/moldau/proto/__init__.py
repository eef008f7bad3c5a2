"""Stubs of the gRPC API, generated from proto/ by proto/generate.py and committed."""
