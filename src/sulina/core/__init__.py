"""Rules without IO: what a log is, decided on bytes and numbers alone."""
