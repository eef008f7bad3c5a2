"""The moldau command."""
