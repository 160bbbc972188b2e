CREATE TABLE swaps (
  id INTEGER PRIMARY KEY,
  epoch INTEGER NOT NULL,
  number INTEGER NOT NULL, -- counts the swaps of one process from 1
  ended_wall_s REAL NOT NULL,
  from_models TEXT NOT NULL, -- JSON array
  to_model TEXT NOT NULL,
  swap_s REAL NOT NULL,
  vram_mib REAL,
  offloaded INTEGER,
  failed INTEGER NOT NULL,
  reason TEXT NOT NULL,
  UNIQUE (epoch, number)
) STRICT;

CREATE INDEX swaps_by_end ON swaps (ended_wall_s);
