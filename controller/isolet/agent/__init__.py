"""The node side: makes one Docker daemon be what is wanted."""
