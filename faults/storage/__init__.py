"""Disks that lose power, fail or fill up, as real file systems on this machine."""
