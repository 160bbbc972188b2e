ALTER TABLE invocation_log ADD COLUMN user TEXT; -- of the caller's users, where its key tells them apart
