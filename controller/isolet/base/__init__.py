"""The bottom layer: clock, errors, names, logs. Standard library only."""
