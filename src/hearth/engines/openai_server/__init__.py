"""What engines before servers with OpenAI's API have in common, and any such server as one."""
