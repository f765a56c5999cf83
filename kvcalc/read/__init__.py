"""Foreign files, one module per format: what each says about a model, read without loading the model."""
