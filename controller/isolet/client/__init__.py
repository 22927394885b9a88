"""How the operator reaches an agent."""
