"""Users in the ingress: who sent a request, whether it may begin, what it took."""
