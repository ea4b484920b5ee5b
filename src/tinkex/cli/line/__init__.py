"""A command line: its words, the command they mean, its options, what it has while it runs."""
