"""How the supervisor of a node tells `moldau broker start` that it is one of its processes."""

from typing import Final

PROCESS_OPTION: Final = "--node-process"
"""The number of the process; the rest is on its standard input. No prefix of an option that people
type: one who leaves out a letter of --processes has to learn of it."""
