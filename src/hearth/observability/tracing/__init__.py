"""Traces: what became of each request and when, for an OpenTelemetry collector.

`gathering` turns events into plain spans and knows nothing of OpenTelemetry; only `export` imports it, and only `bootstrap` imports
`export`, where the settings name a collector.
"""
