"""What is particular to a model family: its configuration and tensor names as the engine's one decoder takes them."""
