"""The version of Moldau. Imports nothing, so that every module can use it."""

__version__ = "0.1.0"
