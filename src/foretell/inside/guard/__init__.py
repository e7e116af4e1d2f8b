"""Refuses what cannot be estimated, and keeps trackers and hubs offline."""
