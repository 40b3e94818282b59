"""All that touches Flower: the link that carries requests, and the nodes that answer them."""
