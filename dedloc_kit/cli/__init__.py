"""The `dedloc` command."""
