"""Rewrite a model: replace the sampling nodes that detection found by nodes of a target."""
