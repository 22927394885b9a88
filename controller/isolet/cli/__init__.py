"""Entry points: the only place that picks real implementations."""
