"""Copies of workspaces from one node to another, and to and from an object store."""
