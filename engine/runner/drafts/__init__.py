"""Draft networks beside the target: what they read of it, how far their keys go, their drafts."""
