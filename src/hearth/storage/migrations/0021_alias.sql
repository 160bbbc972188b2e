ALTER TABLE invocation_log ADD COLUMN alias TEXT; -- by which its caller meant any of several models
