"""Who gets which record, and when again: subscriptions, subscribers at every node, registered readers."""
