"""Types, shapes and lengths of the values of a graph, as far as they are known before it runs."""
