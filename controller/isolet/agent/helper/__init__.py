"""Programs that look at what strangers made, in processes that have given everything away."""
