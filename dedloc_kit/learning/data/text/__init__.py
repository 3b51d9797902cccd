"""Texts as token ids."""
