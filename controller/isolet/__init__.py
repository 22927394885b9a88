"""Isolet: untrusted code in gVisor sandboxes, as Kubernetes resources."""

__version__ = "0.1.0"
