"""The grammar engines behind one port: ``base`` is the port, each sibling one adapter."""
