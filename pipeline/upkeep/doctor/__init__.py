"""`doit doctor`: says what is wrong with a host, an environment or a project before a build meets it.

Each check is a function from facts to findings; facts are plain values that were gathered before. The checks of the
host and of its packages need the standard library alone, so that they work where packages are missing or clash.
"""
