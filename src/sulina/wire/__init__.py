"""What goes over connections, without the connections: messages, and frames of the WebSocket protocol."""
