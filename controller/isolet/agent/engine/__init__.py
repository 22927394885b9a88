"""What the agent needs of a container engine, and the implementations of it."""
