"""A small model that answers on the CPU where there is no model server."""
