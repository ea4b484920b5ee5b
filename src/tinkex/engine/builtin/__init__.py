"""Models that come with the engine or are made from one file."""
