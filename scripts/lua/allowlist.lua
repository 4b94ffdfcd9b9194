-- allowlist.lua: what every step of a load of the allowlist begins with, after
-- prelude.lua. A load stages the whole list beside the one that is in force, puts it
-- in force in one step, and clears away what is left, page by page. Each step carries
-- the load's token, and changes nothing once another load has the turn.
-- KEYS[1..4] see prelude.lua
-- KEYS[5] candidates:load        hash: the load that has the turn, and its figures
-- KEYS[6] candidates:valid       set: the list in force
-- KEYS[7] candidates:next        set: the list that is staged
-- KEYS[8] candidates:next:email  hash: e-mails that change when it is put in force
-- KEYS[9] candidates:old         set: the list that was in force, until it is cleared away
-- KEYS[10] candidates:changed    hash: e-mails that were to change with it and have not yet
-- KEYS[11] candidates:kept       set: off the list, and the e-mail is kept for a seat, or
--          for late money that may still make one
-- KEYS[12] candidates:swaps      integer: how often a list was put in force
-- KEYS[13] booking:open   KEYS[14] booking:opens_at
-- KEYS[15..] candidate:email:<code> of the codes that a step names
-- ARGV[1] clock offset  ARGV[2] Redis TIME in ms from which on nothing is changed
-- ARGV[3] the load's token  ARGV[4] its lease in ms, which every step renews
-- Clock: Redis TIME plus the offset; it ends leases and decides whether booking is open.
-- Returns {word, detail, now, token, who, since, until, phase, chunks, rows, added,
-- changed, unchanged, listed, open (1 or 0), left (1 or 0), of, of_since}: the load that
-- has the turn and its figures, how many are on the list in force, whether booking is
-- open, whether a load has left something to clear away, and, while an earlier one's is
-- in force and not cleared away, whose that was and since when. Words of every step:
--   superseded: another load has the turn, or none, or the sale is another one
--   expired: nothing was changed; unknown
if not epoch then return {'unknown', '', now} end
mark()
if now - tonumber(ARGV[1]) >= tonumber(ARGV[2]) then return {'expired', '', now} end

local TEXT_FIELDS = {'token', 'who', 'epoch', 'phase', 'of'}
local NUMBER_FIELDS = {'since', 'until', 'chunks', 'rows', 'added', 'changed', 'unchanged', 'deferred', 'listed', 'of_since'}
local load = {}
for i, v in ipairs(redis.call('HMGET', KEYS[5], unpack(TEXT_FIELDS))) do load[TEXT_FIELDS[i]] = v or '' end
for i, v in ipairs(redis.call('HMGET', KEYS[5], unpack(NUMBER_FIELDS))) do load[NUMBER_FIELDS[i]] = tonumber(v or '') or 0 end
local mine = load.token == ARGV[3] and load.epoch == epoch

local switch, opens_at = redis.call('GET', KEYS[13]), tonumber(redis.call('GET', KEYS[14]) or '')
local open = switch == '1' or (not switch and opens_at ~= nil and now >= opens_at)

-- keep writes the load down, its lease renewed.
local function keep()
  load['until'] = now + tonumber(ARGV[4])
  local fields = {}
  for _, f in ipairs(TEXT_FIELDS) do
    fields[#fields + 1] = f
    fields[#fields + 1] = load[f]
  end
  for _, f in ipairs(NUMBER_FIELDS) do
    fields[#fields + 1] = f
    fields[#fields + 1] = string.format('%.0f', load[f])
  end
  redis.call('HSET', KEYS[5], unpack(fields))
end

-- fresh forgets what the load has staged, and whom it had to finish.
local function fresh()
  load.phase, load.listed, load.of, load.of_since = 'staging', redis.call('SCARD', KEYS[6]), '', 0
  for _, f in ipairs({'chunks', 'rows', 'added', 'changed', 'unchanged', 'deferred'}) do load[f] = 0 end
end

local function answer(word, detail)
  return {word, detail or '', now, load.token, load.who, load.since, load['until'], load.phase, load.chunks,
    load.rows, load.added, load.changed, load.unchanged, load.listed, open and 1 or 0,
    redis.call('EXISTS', KEYS[7], KEYS[8], KEYS[9], KEYS[10]) > 0 and 1 or 0, load.of, load.of_since}
end
