ALTER TABLE process ADD COLUMN seen_wall_s REAL; -- the latest time that this process took for right; NULL: none

UPDATE process SET seen_wall_s = MAX(started_wall_s, COALESCE((SELECT MAX(ended_wall_s) FROM invocation_log), 0));
