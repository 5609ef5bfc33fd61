"""The grammar engines behind the interface that ``base`` defines; each module adapts one engine."""
