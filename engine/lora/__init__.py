"""Low-rank adapters (LoRA, arXiv 2106.09685) beside a native model, many in one batch."""
