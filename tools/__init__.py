"""Programs of the Makefile that are not part of the product."""
