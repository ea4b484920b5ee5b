"""Training: batches of many runs' calls packed into passes, and optimizer steps."""
