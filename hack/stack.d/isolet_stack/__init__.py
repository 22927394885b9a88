"""Isolet's own processes on a development cluster: for the quick start, the tests and the bench."""
