"""What becomes of events: written as log lines, counted, kept for the status, traced.

Never decides, never delays a request.
"""
