"""All that touches Flower: the link that carries letters, and the nodes that answer them."""
