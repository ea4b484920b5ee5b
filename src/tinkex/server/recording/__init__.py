"""Recording: the history of runs and of the server, kept small and read at any resolution."""
