DROP INDEX jobs_by_state;
CREATE INDEX jobs_waiting ON jobs (lane, priority, task_type, model, number, caller, id, not_before_wall_s, off_peak) WHERE state = 'queued';
CREATE INDEX jobs_running ON jobs (epoch) WHERE state = 'running';
