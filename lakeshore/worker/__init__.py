"""The worker: one job at a time from claim to ending; errors become state, never a dead worker."""
