"""Commands of a federation between real parties, a module for each group of them."""
