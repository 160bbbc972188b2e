ALTER TABLE jobs ADD COLUMN dispatched INTEGER NOT NULL DEFAULT 1; -- whether its latest start has reached the model server
