"""What becomes of an alert: when it is worth a message, what the message says, and how it gets to Discord, ntfy or a webhook.

`hearth.alerts.alerter` is the door. Nothing here knows the queue, and nothing here is on the way of a request.
"""
