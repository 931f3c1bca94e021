"""Benchmarks: cases as data, backends as adapters, timing in rounds, and a report."""
