"""Ways to run the steps of a model: what a step computes is the model's, how is an executor's."""
