"""A node: metadata, broker and listeners, put together from its settings, started and stopped in order."""

from sulina.node.node import Node

__all__ = ["Node"]
