"""Training: operations taken in, scheduled, carried to an engine and answered."""
