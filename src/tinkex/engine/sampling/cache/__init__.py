"""The paged KV cache: keys and values, recurrent states, and who holds their places."""
