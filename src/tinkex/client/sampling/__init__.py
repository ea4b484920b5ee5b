"""Samplers as users hold them: SamplingClient, its calls and its streams."""
