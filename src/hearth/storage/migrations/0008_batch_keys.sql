ALTER TABLE batches ADD COLUMN idempotency_key TEXT;
ALTER TABLE batches ADD COLUMN digest TEXT NOT NULL DEFAULT ''; -- of the request that came with the key

CREATE INDEX batches_by_idempotency_key ON batches (caller, idempotency_key) WHERE idempotency_key IS NOT NULL;
