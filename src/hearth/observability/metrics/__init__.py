"""What `/metrics` says: counted from events, read from the live state at each scrape, rendered for Prometheus."""
