"""Which dedloc_kit this is."""

__version__ = "0.2.0"
