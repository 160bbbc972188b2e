-- what the rate limits counted a request as: requests, embeddings, or nothing where it shared a call that was counted already
ALTER TABLE invocation_log ADD COLUMN counted TEXT NOT NULL DEFAULT 'requests';
ALTER TABLE admissions ADD COLUMN counted TEXT NOT NULL DEFAULT 'requests';
