"""Vectors and scores of texts: what routes and stored collections ask encoders for."""
