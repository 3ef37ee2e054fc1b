"""The mathematics of activations for GPUs; imported when first needed, since it needs Triton."""
