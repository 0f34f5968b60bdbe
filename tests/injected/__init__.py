"""Faults put into what is compiled, and how many samples on the emulator the ladder needs to see them."""
