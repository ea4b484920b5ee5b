"""Operations of training runs: the log that orders them, and what each kind means."""
