"""Tests of the evaluation; `language` makes what they share."""
