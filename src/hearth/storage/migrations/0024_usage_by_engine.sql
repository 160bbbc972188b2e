ALTER TABLE swaps ADD COLUMN engine TEXT; -- of the model that was loaded

CREATE TABLE usage ( -- the log added up, so that months of it are read in milliseconds
  hours          INTEGER NOT NULL, -- the length of the period: 1 or 6
  period         INTEGER NOT NULL, -- in which the requests ended, since 1970
  caller         TEXT NOT NULL,
  model          TEXT NOT NULL, -- empty where none was named
  engine         TEXT NOT NULL, -- empty where none worked on it, and before engines were written down
  requests       INTEGER NOT NULL,
  failed         INTEGER NOT NULL,
  prompt_tokens  INTEGER NOT NULL,
  output_tokens  INTEGER NOT NULL,
  backend_s      REAL NOT NULL,
  -- of the answers of which it is known how long they were being written; before, of none
  written_tokens INTEGER NOT NULL,
  written_s      REAL NOT NULL,
  -- how many waited so long: from the bound of the column before to this one's (storage/usage.py)
  w0 INTEGER NOT NULL, w1 INTEGER NOT NULL, w2 INTEGER NOT NULL, w3 INTEGER NOT NULL, w4 INTEGER NOT NULL, w5 INTEGER NOT NULL, w6 INTEGER NOT NULL,
  w7 INTEGER NOT NULL, w8 INTEGER NOT NULL, w9 INTEGER NOT NULL, w10 INTEGER NOT NULL, w11 INTEGER NOT NULL, w12 INTEGER NOT NULL, w13 INTEGER NOT NULL,
  bounded        INTEGER NOT NULL, -- requests that were told to wait
  bounds_kept    INTEGER NOT NULL,
  PRIMARY KEY (hours, period, caller, model, engine)
) WITHOUT ROWID, STRICT;

INSERT INTO usage
SELECT 1, hour, caller, model, '', requests, failed, prompt_tokens, output_tokens, backend_s, 0, 0.0,
  w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, bounded, bounds_kept
FROM usage_hours;

INSERT INTO usage
SELECT 6, hour / 6, caller, model, '', SUM(requests), SUM(failed), SUM(prompt_tokens), SUM(output_tokens), SUM(backend_s), 0, 0.0,
  SUM(w0), SUM(w1), SUM(w2), SUM(w3), SUM(w4), SUM(w5), SUM(w6), SUM(w7), SUM(w8), SUM(w9), SUM(w10), SUM(w11), SUM(w12), SUM(w13), SUM(bounded), SUM(bounds_kept)
FROM usage_hours
GROUP BY 2, 3, 4;

DROP TABLE usage_hours;

CREATE TABLE energy_hours ( -- what the GPU drew
  hour       INTEGER NOT NULL, -- since 1970
  epoch      INTEGER NOT NULL,
  energy_wh  REAL NOT NULL,
  measured_s REAL NOT NULL, -- of the hour: in the rest nothing was read
  PRIMARY KEY (hour, epoch)
) WITHOUT ROWID, STRICT;
