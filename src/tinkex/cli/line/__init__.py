"""A command line: parsing it, finding its command, its options and its context."""
