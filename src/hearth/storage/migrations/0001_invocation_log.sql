PRAGMA application_id = 0x48525448; -- "HRTH"

CREATE TABLE process (
  epoch INTEGER PRIMARY KEY AUTOINCREMENT, -- one per start of the gateway, never reused
  started_wall_s REAL NOT NULL,
  version TEXT NOT NULL
);

CREATE TABLE invocation_log (
  id INTEGER PRIMARY KEY,
  epoch INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  request_id TEXT NOT NULL,
  chain_id TEXT,
  caller TEXT NOT NULL,
  lane TEXT NOT NULL,
  task_type TEXT,
  model TEXT,
  accepted_wall_s REAL NOT NULL,
  ended_wall_s REAL NOT NULL,
  queue_s REAL NOT NULL,
  swap_s REAL NOT NULL,
  first_byte_s REAL,
  backend_s REAL,
  total_s REAL NOT NULL,
  prompt_tokens INTEGER,
  output_tokens INTEGER,
  cost_usd REAL,
  attempts INTEGER NOT NULL,
  interrupt_count INTEGER NOT NULL,
  outcome TEXT NOT NULL,
  reason TEXT NOT NULL,
  status INTEGER,
  UNIQUE (epoch, sequence)
) STRICT;

CREATE INDEX invocation_log_by_end ON invocation_log (ended_wall_s);
CREATE INDEX invocation_log_by_acceptance ON invocation_log (accepted_wall_s);
