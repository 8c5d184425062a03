"""`redoubt bench faults`: how many requests are lost when something dies."""
