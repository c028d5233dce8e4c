"""Deliveries to subscribers at every node: the feed of a partition at its owner, the endpoint of a node."""
