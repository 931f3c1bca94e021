"""The operators where other libraries take operators from outside; each is imported by the call that is for it."""
