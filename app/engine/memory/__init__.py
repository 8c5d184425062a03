"""Pages that outlive the process: how the engine gets them back, and when it gives them away to be saved."""
