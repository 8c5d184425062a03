"""Users in the ingress: authentication, admission, limits and stored texts. Exists only with accounts."""
