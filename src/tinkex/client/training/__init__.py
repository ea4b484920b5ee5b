"""Training runs as users hold them: TrainingClient and custom losses."""
