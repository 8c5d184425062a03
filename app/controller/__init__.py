"""The controller: chooses a worker for each request, and knows which workers live."""
