"""How much the tests see: small changes to the package, one at a time, and the tests that should notice each."""
