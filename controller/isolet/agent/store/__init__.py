"""What the agent has promised and how far it has come, durable."""
