"""Groups of options that several commands share: the node to connect to, a topic's policy, the settings of a node."""
