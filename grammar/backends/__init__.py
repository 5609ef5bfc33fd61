"""The grammar engines behind one interface: ``base`` defines it, each sibling adapts one engine."""
