"""Steps of single tokens of small models on a CPU."""
