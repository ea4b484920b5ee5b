"""Recording: what runs and the server went through, kept small and read at any resolution."""
