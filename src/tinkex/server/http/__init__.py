"""The HTTP face: routes, what they read and answer, and what describes them."""
