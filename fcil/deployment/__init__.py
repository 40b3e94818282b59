"""A federation between real parties: keys, requests, a site and its folder, the proxy, and the server."""
