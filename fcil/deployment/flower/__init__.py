"""The transport over Flower: a SuperLink at the server, a node at each party."""
