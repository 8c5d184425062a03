"""The types that the layers exchange. Imports nothing else of Redoubt."""
