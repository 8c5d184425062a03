"""The Ray Serve application: ingress, router, workers, page and command line."""
