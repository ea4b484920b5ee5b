"""Calls to the server: admission, attempts, retries and credentials, once for all."""
