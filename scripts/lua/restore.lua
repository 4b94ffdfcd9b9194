-- restore.lua: the steps of a rebuild but its last: it begins in a ledger that has
-- no epoch, puts rows back part by part, and, once apply_sale.lua has counted them
-- and written the epoch, forgets its token.
-- KEYS[1..4] see prelude.lua   KEYS[5] adm:rebuild
-- then for each row: hold:attempt:<attempt>, hold:payment:<payment>
-- ARGV[1] clock offset  ARGV[2] Redis TIME in ms from which on nothing is changed
-- ARGV[3] the rebuild's token, its own alone
-- ARGV[4] 'begin', 'rows' or 'forget'
-- ARGV[5] for 'begin' the token of the rebuild it follows, or ''; else ''
-- then for each row: code, row (JSON), when to look at it (Unix ms) or '',
-- stash of the attempt (JSON), stash of the payment (JSON)
-- Clock: Redis TIME; the offset is in the answer alone.
-- Returns {word, '', now}:
--   begun: what an unfinished rebuild left is gone, and this one has its turn
--   restored; forgotten (the epoch is acknowledged, so the token has served)
--   not_lost: there is an epoch; superseded: another rebuild has its turn, or none;
--   expired: nothing was changed
-- Repeated it finds its own effect: a second 'begin' removes nothing.
mark()
if now - tonumber(ARGV[1]) >= tonumber(ARGV[2]) then return {'expired', '', now} end
local turn = redis.call('GET', KEYS[5]) or ''
if ARGV[4] == 'forget' then
  if epoch and turn == ARGV[3] then redis.call('DEL', KEYS[5]) end
  return {'forgotten', '', now}
end
if epoch then return {'not_lost', '', now} end
if ARGV[4] == 'begin' then
  if turn == ARGV[3] then return {'begun', '', now} end
  if turn ~= ARGV[5] then return {'superseded', '', now} end
  redis.call('DEL', KEYS[2], KEYS[3])
  redis.call('SET', KEYS[5], ARGV[3])
  return {'begun', '', now}
end
if turn ~= ARGV[3] then return {'superseded', '', now} end
for i = 0, (#ARGV - 5) / 5 - 1 do
  local a, k = 6 + 5 * i, 6 + 2 * i
  redis.call('HSET', KEYS[2], ARGV[a], ARGV[a + 1])
  if ARGV[a + 2] ~= '' then redis.call('ZADD', KEYS[3], ARGV[a + 2], ARGV[a]) end
  redis.call('SET', KEYS[k], ARGV[a + 3], 'PX', STASH_TTL)
  redis.call('SET', KEYS[k + 1], ARGV[a + 4], 'PX', STASH_TTL)
end
return {'restored', '', now}
