"""The whole life of sessions, runs, checkpoints and samplers, walked at random over real HTTP."""
