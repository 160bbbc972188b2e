"""What becomes of events: fanned out to sinks, written as log lines, counted over the last day. Never decides, never delays a request."""
