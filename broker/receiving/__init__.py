"""How messages are taken for a consumer: POP, FIFO and pull, one machine put together from parts.

It must not know any protocol: an adapter hands it an encoder. Begin with the picture in `batch.py`;
`fifo.py` says where a FIFO batch is locked.
"""
