"""Products on the CPU: threads, oneDNN, batch invariance."""
