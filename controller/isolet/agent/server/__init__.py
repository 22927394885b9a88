"""The agent's HTTP face: it parses, asks an `AgentAPI`, and answers; it decides nothing itself."""
