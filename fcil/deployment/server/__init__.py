"""The server's side of a real federation."""
