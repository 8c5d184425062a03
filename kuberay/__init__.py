"""How Redoubt runs on a cluster: the image, and the manifests for KubeRay."""
