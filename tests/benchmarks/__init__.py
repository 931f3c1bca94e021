"""The standard suite: cases as data, backends as adapters, timing in rounds, and a report: ``python -m`` runs it."""
