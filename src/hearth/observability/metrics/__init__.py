"""What `/metrics` says: counted from events in plain numbers, read from the live state at each scrape, rendered for Prometheus.

Nothing here decides anything, and nothing is looked up by name on the way of a request.
"""
