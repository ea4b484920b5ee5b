"""Samples, from admission to their results.

lanes      below every protocol: queued per tenant, with the engine within bounds, cancelled
jobs       the Tinker protocol's: numbered, answered once, kept for a while, lost honestly
"""
