"""`redoubt bench report`: what a machine does with a model, as one HTML page and its JSON."""
