"""What is known of one HTTP request, and how it fails."""
