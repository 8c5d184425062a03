"""Groups of the `redoubt` command, and how its mistakes are worded."""
