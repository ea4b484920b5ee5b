"""What listing commands share: pages, empty lists, CSV, names of runs."""
