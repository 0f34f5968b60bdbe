"""Talks to a language model that was built."""
