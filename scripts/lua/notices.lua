-- notices.lua: when the gateway's open notifications are worked on next. The store
-- has them; this is their order.
-- KEYS[1..4] see prelude.lua   KEYS[5] ntf:due
-- ARGV[1] clock offset  ARGV[2] 'later', 'due' or 'done'
-- later: ARGV[3] message id  ARGV[4] in how many ms   due: ARGV[3] how many at most
-- done: ARGV[3] message id
-- Clock: Redis TIME plus the offset.
-- Returns {'later' or 'done', '', now}; {'due', '', now, id, id, ...}, oldest first;
-- unknown. Safe to repeat.
if not epoch then return {'unknown', '', now} end
if ARGV[2] == 'due' then
  local ids = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', string.format('%.0f', now), 'LIMIT', 0, tonumber(ARGV[3]))
  return {'due', '', now, unpack(ids)}
end
mark()
if ARGV[2] == 'done' then
  redis.call('ZREM', KEYS[5], ARGV[3])
else
  redis.call('ZADD', KEYS[5], string.format('%.0f', now + tonumber(ARGV[4])), ARGV[3])
end
return {ARGV[2], '', now}
