"""How the image is built without Docker. Programs of the Makefile; no part of the product."""
