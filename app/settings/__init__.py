"""Every knob of the service, typed."""
