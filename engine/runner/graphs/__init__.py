"""Steps as CUDA graphs: what is captured, what they read, and which kernels they hold."""
