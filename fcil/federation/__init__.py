"""The round: catalogue, orders, replies, averaging, proxy; as a generator over rounds."""
