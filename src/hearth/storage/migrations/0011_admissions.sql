CREATE TABLE admissions ( -- external requests that were under way for a while: a kill leaves no other trace of them
    epoch           INTEGER NOT NULL,
    sequence        INTEGER NOT NULL,
    request_id      TEXT NOT NULL,
    caller          TEXT NOT NULL,
    accepted_wall_s REAL NOT NULL,
    PRIMARY KEY (epoch, sequence)
) WITHOUT ROWID;
