"""Messages between parties, the exchange of models, and the interface of a transport."""
