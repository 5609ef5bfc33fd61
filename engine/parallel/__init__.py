"""One engine on several devices: the processes that run each step together, and what they say to
each other."""
