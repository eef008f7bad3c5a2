"""Drives one Raft group over one log. Effects run only here."""
