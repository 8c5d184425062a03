"""Files as text, for a model: a process with bounds reads them. Knows neither HTTP, accounts nor models."""
