"""What clients send and read, a file a family. Types only."""
