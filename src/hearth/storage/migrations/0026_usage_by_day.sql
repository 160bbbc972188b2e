-- days, too: three months of them are read four times as fast as in periods of six hours
INSERT INTO usage
SELECT 24, period / 4, caller, model, engine, SUM(requests), SUM(failed), SUM(prompt_tokens), SUM(output_tokens), SUM(backend_s),
  SUM(written_tokens), SUM(written_s),
  SUM(w0), SUM(w1), SUM(w2), SUM(w3), SUM(w4), SUM(w5), SUM(w6), SUM(w7), SUM(w8), SUM(w9), SUM(w10), SUM(w11), SUM(w12), SUM(w13), SUM(bounded), SUM(bounds_kept)
FROM usage
WHERE hours = 6
GROUP BY 2, 3, 4, 5;
