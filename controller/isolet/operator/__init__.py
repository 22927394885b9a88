"""The Kubernetes side: watch, decide, tell agents what to want, write status."""
