"""Quality of a model on the native engine: perplexity, divergence from the unquantized model, tasks."""
