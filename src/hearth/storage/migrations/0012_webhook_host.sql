ALTER TABLE jobs ADD COLUMN webhook_host TEXT; -- of webhook_url, in lower case; NULL: none, or accepted by an earlier version

DROP INDEX jobs_to_tell;
CREATE INDEX jobs_to_tell ON jobs (webhook_host, webhook_due_wall_s) WHERE webhook = 'waiting' AND ended_wall_s IS NOT NULL;
