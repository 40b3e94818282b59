"""A real federation between organisations.

- `server/`: membership, rounds, evaluation and the run's directory
- `client/`: a site, its folder of images and the store of its samples
- `proxy.py`: the proxy, which opens sealed prototypes and signs its choice of teachers
- `party.py`, `party_store.py`: the base of site and proxy, and its state on disk
- `keys/`: making, storing, checking and using keys and certificates
- `transport/`: messages between parties, independent of what carries them
- `flower/`: the transport over Flower; nothing else imports Flower
- `local_demo.py`: a whole federation on one machine
"""
