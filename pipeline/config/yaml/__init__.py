"""Typed YAML: a strict reader, and frozen dataclasses as the one definition of what may be written.

The decoder, which reports every mistake with its place, the JSON Schema and the reference are made from the same
dataclasses. Nothing here is about a particular file.

- :mod:`.tree`: bytes -> a tree of values that know where they were written
- :mod:`.forms`: type hints -> forms, what a value may look like
- :mod:`.decode`: tree + form -> a value, or problems
- :mod:`.json_schema`: form -> JSON Schema, with :mod:`.docstrings`
"""
