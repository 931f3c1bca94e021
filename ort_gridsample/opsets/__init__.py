"""Conversion of models to older and newer opsets."""
