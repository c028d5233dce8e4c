"""Where clients come in: HTTP, WebSocket, and connections within the process."""
