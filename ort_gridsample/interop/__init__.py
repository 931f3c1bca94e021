"""The operators for libraries that take operators from outside; each library is imported by the call for it."""
