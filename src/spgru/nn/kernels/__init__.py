"""Operations of modules for GPUs; imported when first needed, since they need Triton."""
