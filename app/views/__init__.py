"""One page a file, each a short page()."""
