"""Benchmarks: Isolet beside its floor, measured in the same run and in turns."""
