"""What makes an overlay confidential: the policy of the agent in the guest, its initdata, and what the KBS demands.

`python -m kuberay.confidential` is a program of the deployment; no part of the product.
"""
