"""Running a checkpoint layer by layer, to see what inputs its matrices get; no torch, no engine."""
