"""From a checkpoint to a packed low-bit model: sources, quantizers, the packed file and the conversion."""
