"""What stands between a browser and Gradio: the page is mounted, bounded, and gets only what was checked."""
