"""The front door: who may, whether there is room, whether the request is whole; then a run."""
