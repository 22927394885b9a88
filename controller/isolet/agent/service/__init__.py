"""What the agent does with what it is told: one worker a sandbox, woken by event or time."""
