"""What becomes of an alert: when it is worth a message, what the message says, and how it gets to
Discord, ntfy or a webhook.
"""
