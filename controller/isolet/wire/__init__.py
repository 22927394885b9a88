"""What the operator and an agent say to each other."""
