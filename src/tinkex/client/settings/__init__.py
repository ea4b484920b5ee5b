"""Settings: configuration, credentials, and reports about why work waits."""
