ALTER TABLE invocation_log ADD COLUMN conversation TEXT; -- a salted digest, the same for each turn while one gateway runs
