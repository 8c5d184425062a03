"""Sealed models: all files of a converted model in one encrypted image, for a disk that its reader does not trust."""
