"""What the agent does with what it is told: one worker a sandbox, woken by message, event or time."""
