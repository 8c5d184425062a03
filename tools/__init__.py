"""What the Makefile runs that is no part of the product."""
