"""What the layers say to each other. Imports nothing else of ours."""
