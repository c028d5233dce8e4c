"""IO around the rules of `core`: files, objects, commit logs, the partition log, the archive."""
