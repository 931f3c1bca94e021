"""Replace the nodes that were found by nodes of a target."""
