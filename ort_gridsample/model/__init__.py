"""Models: reading, finding, spelling and rewriting graphs. Nothing here runs one."""
