CREATE TABLE jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of acceptance, never reused
  id TEXT NOT NULL UNIQUE,
  caller TEXT NOT NULL,
  lane TEXT NOT NULL,
  priority INTEGER NOT NULL,
  task_type TEXT,
  job_key TEXT,
  path TEXT NOT NULL,
  model TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'completed', 'failed', 'cancelled')),
  epoch INTEGER, -- the process that runs it; NULL while none does
  attempts INTEGER NOT NULL DEFAULT 0, -- starts so far
  accepted_wall_s REAL NOT NULL,
  not_before_wall_s REAL,
  off_peak INTEGER NOT NULL DEFAULT 0,
  started_wall_s REAL,
  ended_wall_s REAL,
  reason TEXT NOT NULL DEFAULT '',
  error TEXT NOT NULL DEFAULT '',
  status INTEGER,
  content_type TEXT NOT NULL DEFAULT '',
  idempotency_key TEXT,
  digest TEXT NOT NULL DEFAULT '',
  webhook TEXT NOT NULL DEFAULT 'none' CHECK (webhook IN ('none', 'waiting', 'delivered', 'failed')),
  webhook_url TEXT, -- forgotten once the message is delivered or given up
  webhook_attempts INTEGER NOT NULL DEFAULT 0,
  webhook_due_wall_s REAL,
  bytes INTEGER NOT NULL, -- of request and result
  request BLOB NOT NULL,
  result BLOB
) STRICT;

CREATE INDEX jobs_by_state ON jobs (state, bytes);
CREATE INDEX jobs_by_end ON jobs (ended_wall_s) WHERE ended_wall_s IS NOT NULL;
CREATE INDEX jobs_by_idempotency_key ON jobs (caller, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_open_by_key ON jobs (caller, task_type, job_key) WHERE job_key IS NOT NULL AND state IN ('queued', 'running');
CREATE INDEX jobs_by_caller ON jobs (caller, number);
CREATE INDEX jobs_to_tell ON jobs (webhook_due_wall_s) WHERE webhook = 'waiting' AND ended_wall_s IS NOT NULL;
