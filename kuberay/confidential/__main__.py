"""`python -m kuberay.confidential`."""

from kuberay.confidential.command import main

main()
