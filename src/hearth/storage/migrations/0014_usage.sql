CREATE TABLE usage_hours ( -- the log added up hour by hour, so that weeks of it are read in milliseconds
  hour          INTEGER NOT NULL, -- in which the requests ended, since 1970
  caller        TEXT NOT NULL,
  model         TEXT NOT NULL, -- empty where none was named
  requests      INTEGER NOT NULL,
  failed        INTEGER NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  backend_s     REAL NOT NULL,
  -- how many waited so long: from the bound of the column before to this one's (storage/usage.py)
  w0 INTEGER NOT NULL, w1 INTEGER NOT NULL, w2 INTEGER NOT NULL, w3 INTEGER NOT NULL, w4 INTEGER NOT NULL, w5 INTEGER NOT NULL, w6 INTEGER NOT NULL,
  w7 INTEGER NOT NULL, w8 INTEGER NOT NULL, w9 INTEGER NOT NULL, w10 INTEGER NOT NULL, w11 INTEGER NOT NULL, w12 INTEGER NOT NULL, w13 INTEGER NOT NULL,
  PRIMARY KEY (hour, caller, model)
) WITHOUT ROWID, STRICT;

CREATE TABLE usage_mark (invocation_id INTEGER NOT NULL) STRICT; -- rows of the log up to this one are in usage_hours
INSERT INTO usage_mark VALUES (0);
