"""Which dedloc_kit this is."""

__version__ = "0.6.0"
