"""What this node allows, whoever asks: its administrator's file, and pure checks against it."""
