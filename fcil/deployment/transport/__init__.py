"""Transport between parties: message types and the exchange of models."""
