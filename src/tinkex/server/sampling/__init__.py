"""Samples, from admission to their results.

lanes      for every protocol: queues per tenant, bounded work at the engine, cancellation
jobs       for the Tinker protocol: numbering, results kept for a while, lost samples reported
"""
