-- what requests are searched by, as one text: few are different, whatever their number
ALTER TABLE invocation_log ADD COLUMN kind TEXT GENERATED ALWAYS AS (
  quote(caller) || ',' || quote(user) || ',' || quote(model) || ',' || quote(engine) || ','
  || quote(outcome) || ',' || quote(lane) || ',' || quote(task_type)
) VIRTUAL;
CREATE INDEX invocation_log_by_kind ON invocation_log (kind, ended_wall_s);
CREATE INDEX invocation_log_by_request ON invocation_log (request_id);
