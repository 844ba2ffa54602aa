"""Between coordinator and workers: the embedded server, the transport, the keys, and a client."""
