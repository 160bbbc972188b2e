-- The emulator worked on it last, so its answer is made up. Of what was there before nobody knows.
ALTER TABLE invocation_log ADD COLUMN emulated INTEGER NOT NULL DEFAULT 0;
