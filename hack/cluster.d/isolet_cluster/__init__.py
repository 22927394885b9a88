"""The parts of a real cluster on one machine: etcd, API server, controllers, node daemons.

Standard library only: it runs before the project's Python environment is made.
"""
