"""From topics to tables: declared in one file, run by one command, each record once."""
