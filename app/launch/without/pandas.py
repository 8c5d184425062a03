"""Shadows pandas in the path of Ray's processes: Serve imports it if it is installed, and nothing here uses it.

The import takes 0.4 s and 45 MB per process. Ray works without it.
"""

raise ImportError("pandas is left out of Ray's processes: see app/launch/ray_environment.py")
