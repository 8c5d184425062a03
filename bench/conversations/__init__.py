"""`redoubt bench conversations`: real conversations that arrive at random, at our service and at the peers' servers."""
