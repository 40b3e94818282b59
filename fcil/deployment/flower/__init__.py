"""The transport over Flower: a SuperLink at the server, a SuperNode at each party."""
