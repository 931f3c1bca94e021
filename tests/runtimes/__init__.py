"""Test which runtimes run the operators, standard and lowered: ``python -m tests.runtimes``."""
