"""What a model thinks before it answers: how it is asked to, and how its thought is told from its answer."""
