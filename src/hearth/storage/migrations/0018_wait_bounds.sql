ALTER TABLE invocation_log ADD COLUMN wait_bound_s REAL; -- within which it was said to start
ALTER TABLE invocation_log ADD COLUMN bound_kept INTEGER; -- 1 where it did; NULL where it was not told to wait
ALTER TABLE usage_hours ADD COLUMN bounded INTEGER NOT NULL DEFAULT 0; -- requests that were told to wait
ALTER TABLE usage_hours ADD COLUMN bounds_kept INTEGER NOT NULL DEFAULT 0;
