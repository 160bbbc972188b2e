"""OpenAI's files and batches: many requests in one file, each of them a durable job.

`desk.Batches` is the way in and the one owner of how far each batch is; the record is `storage`'s, behind `ports`. What runs the requests
is `jobs`.
"""
