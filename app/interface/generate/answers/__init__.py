"""From tokens to choices, and from choices to an answer or to events, a file a family."""
