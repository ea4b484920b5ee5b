"""The SDK's own event loop, and futures between it and the caller's threads."""
