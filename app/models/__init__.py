"""Models by name: from a path, the catalogue or a hub, into a store of converted ones."""
