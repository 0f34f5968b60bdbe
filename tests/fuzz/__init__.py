"""Every reader of foreign bytes, held against bytes that nobody would write.

A reader returns, or raises a PipelineError; nothing else, in bounded time and memory. `corpus/<reader>/` has inputs
that are worth keeping: good ones to start from, and those that were found to break the rule. tests/test_fuzz.py replays
them and tries some more; `python -m tests.fuzz --seconds 600` goes on for as long as it is told.
"""
