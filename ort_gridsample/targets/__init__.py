"""What a GridSample or AffineGrid node can be rewritten as, for runtimes that do not know it."""
