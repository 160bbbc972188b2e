CREATE TABLE job_keys ( -- Idempotency-Keys that were answered with a job of the same job_key; the key that a job came with is in its row
  caller TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  digest TEXT NOT NULL, -- of the request that came with the key
  job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
  answered_wall_s REAL NOT NULL,
  PRIMARY KEY (caller, idempotency_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX job_keys_by_job ON job_keys (job);
