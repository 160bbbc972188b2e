CREATE TABLE files (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT UNIQUE, -- NULL until it is complete
  caller TEXT NOT NULL,
  purpose TEXT NOT NULL CHECK (purpose IN ('batch', 'batch_output')),
  filename TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('filling', 'ready', 'deleted')),
  epoch INTEGER, -- the process that takes an upload in; NULL for what a batch writes
  created_wall_s REAL NOT NULL,
  expires_wall_s REAL,
  bytes INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX files_by_caller ON files (caller, number) WHERE state = 'ready';
CREATE INDEX files_by_state ON files (state);

CREATE TABLE file_parts (
  file INTEGER NOT NULL REFERENCES files (number),
  place INTEGER NOT NULL, -- of an upload: its 64 KiB pieces from 0; of what a batch writes: the line of the input file
  data BLOB NOT NULL,
  PRIMARY KEY (file, place)
) STRICT;

CREATE TABLE batches (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  caller TEXT NOT NULL,
  lane TEXT NOT NULL,
  priority INTEGER NOT NULL,
  models TEXT NOT NULL, -- JSON array of patterns
  endpoint TEXT NOT NULL,
  status TEXT NOT NULL,
  ending TEXT, -- what it will end as, once its last requests have been settled
  window_text TEXT NOT NULL,
  output_life_s REAL NOT NULL,
  metadata TEXT, -- JSON object
  input_file INTEGER NOT NULL,
  input_file_id TEXT NOT NULL,
  output_file INTEGER,
  output_file_id TEXT,
  error_file INTEGER,
  error_file_id TEXT,
  model TEXT,
  total INTEGER NOT NULL DEFAULT 0,
  completed INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  prompt_tokens INTEGER NOT NULL DEFAULT 0,
  output_tokens INTEGER NOT NULL DEFAULT 0,
  problems TEXT NOT NULL DEFAULT '[]', -- JSON
  created_wall_s REAL NOT NULL,
  expires_wall_s REAL NOT NULL,
  in_progress_wall_s REAL,
  finalizing_wall_s REAL,
  cancelling_wall_s REAL,
  ended_wall_s REAL
) STRICT;

CREATE INDEX batches_by_caller ON batches (caller, number);
CREATE INDEX batches_open ON batches (number) WHERE ended_wall_s IS NULL;
CREATE INDEX batches_by_end ON batches (ended_wall_s) WHERE ended_wall_s IS NOT NULL;

CREATE TABLE batch_lines ( -- what is still to be done; a line goes when its outcome is written
  batch INTEGER NOT NULL,
  line INTEGER NOT NULL,
  custom_id TEXT NOT NULL,
  model TEXT NOT NULL,
  start INTEGER NOT NULL, -- where it stands in the input file
  length INTEGER NOT NULL,
  job INTEGER, -- number of its job; NULL while it has none
  PRIMARY KEY (batch, line)
) STRICT, WITHOUT ROWID;

CREATE INDEX batch_lines_waiting ON batch_lines (batch, line) WHERE job IS NULL;
CREATE INDEX batch_lines_running ON batch_lines (batch, line) WHERE job IS NOT NULL;
