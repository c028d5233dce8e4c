"""What brokers share: entries and keys of the metadata store, placement, recovery, time."""
