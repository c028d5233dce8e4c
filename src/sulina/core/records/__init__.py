"""Records and batches, to and from rows and Arrow columns; values and schemas; which partition a key names."""
