"""Object storage: payloads, snapshots and weights in S3, GCS, Azure or a folder, this disk a cache.

Objects are immutable and written once, under names nobody else uses; what counts is what the
database names, so the store has nothing to decide. Nothing is acknowledged before its bytes are
in the store.
"""
