"""A request that runs: from its submission to the engine to the settlement of its usage."""
