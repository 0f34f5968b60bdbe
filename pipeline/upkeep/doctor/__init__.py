"""`doit doctor`: says what is wrong with a host, an environment or a project before a build meets it.

Each check is a function from facts, plain values that were gathered before, to findings. What gathers and what judges
the host and its packages needs the standard library alone, so that it works where packages are missing or clash.
"""
