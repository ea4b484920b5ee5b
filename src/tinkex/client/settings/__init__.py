"""Settings: configuration, credentials, and who is told why work waits."""
