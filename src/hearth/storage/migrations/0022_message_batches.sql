ALTER TABLE batches ADD COLUMN cancelled INTEGER NOT NULL DEFAULT 0; -- of the failed requests: those that were cancelled
ALTER TABLE batches ADD COLUMN expired INTEGER NOT NULL DEFAULT 0; -- and those whose window ended first
ALTER TABLE batch_lines ADD COLUMN problem TEXT; -- JSON: why it gets no job
