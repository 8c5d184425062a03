"""What a machine will do with a model, computed before anybody owns either. Pure: no kernels, no Ray, no HTTP."""
