"""A federation between real parties: keys, letters, a site and its folder, the proxy, and the server."""
