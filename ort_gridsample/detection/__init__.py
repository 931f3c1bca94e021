"""Find the nodes and subgraphs of a model that sample on a grid, and describe each as a record."""
