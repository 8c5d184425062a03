"""Checkpoints to read: Hugging Face folders and GGUF files, behind one interface (`source.Source`)."""
