"""The log of a partition: commits, state, segments, retention, the archive, and where a reader begins."""
