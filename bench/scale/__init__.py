"""One service over many workers, simulated with the code of the real router."""
