CREATE TABLE ledger (
  id TEXT PRIMARY KEY,
  epoch INTEGER NOT NULL,
  caller TEXT NOT NULL,
  model TEXT NOT NULL,
  reserved_usd REAL NOT NULL,
  settled_usd REAL,
  state TEXT NOT NULL CHECK (state IN ('reserved', 'settled', 'released')),
  reserved_wall_s REAL NOT NULL,
  closed_wall_s REAL
) STRICT;

CREATE INDEX ledger_by_reservation ON ledger (reserved_wall_s);
CREATE INDEX ledger_open ON ledger (epoch) WHERE state = 'reserved';

CREATE TABLE estimates (
  name TEXT PRIMARY KEY,
  document TEXT NOT NULL,
  saved_wall_s REAL NOT NULL
) STRICT;
