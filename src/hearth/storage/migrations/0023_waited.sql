ALTER TABLE invocation_log ADD COLUMN resumed TEXT; -- how an interrupted stream went on
ALTER TABLE invocation_log ADD COLUMN decode_s REAL; -- how long the answer was being written, where the engine says so
ALTER TABLE invocation_log ADD COLUMN engine TEXT NOT NULL DEFAULT ''; -- that worked on it last; empty for none
ALTER TABLE invocation_log ADD COLUMN waited_for TEXT; -- JSON: the seconds that it waited, by what for
