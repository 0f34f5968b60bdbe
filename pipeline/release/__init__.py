"""Releases: one file for a model, with all that a runtime needs to choose and all that an auditor asks."""
