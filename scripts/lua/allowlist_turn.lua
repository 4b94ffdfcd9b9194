-- allowlist_turn.lua: whose turn it is to load the allowlist.
-- KEYS[1..14], ARGV[1..4] and the clock: see allowlist.lua
-- ARGV[5] 'take', 'renew', 'leave', 'clear' or 'end'  ARGV[6] for 'take': who loads
-- Clock: see allowlist.lua
-- Returns {word, detail, now, ...} as allowlist.lua says:
--   taken: the turn is this load's; what a dead one has left is still there
--   running: it is another's, whose lease has not lapsed; nothing was changed
--   renewed; left (its lease is over, what it has left is there; with nothing left
--   nobody has the turn, and a repeat says superseded)
--   cleared: nothing is staged, nothing is left, and the load may begin to stage
--   ended: the same, and nobody has the turn; also when it was not this load's
--   unfinished: e-mails of the list in force are still to be changed
-- Repeated it finds its own effect. What 'clear' and 'end' drop is freed by the server
-- in the background, whatever its size; every e-mail in it was seen to before.
local what = ARGV[5]
if what == 'take' then
  if not mine then
    if load.token ~= '' and load.epoch == epoch and now < load['until'] then return answer('running') end
    if load.phase == 'swapped' and load.of == '' then load.of, load.of_since = load.who, load.since end
    load.token, load.who, load.epoch, load.since = ARGV[3], ARGV[6], epoch, now
  end
  keep()
  return answer('taken')
end
if not mine then return answer(what == 'end' and 'ended' or 'superseded') end
if what == 'renew' then
  keep()
  return answer('renewed')
end
if what == 'leave' then
  if redis.call('EXISTS', KEYS[7], KEYS[8], KEYS[9], KEYS[10]) == 0 then
    redis.call('DEL', KEYS[5])
  else
    redis.call('HSET', KEYS[5], 'until', '0')
  end
  return answer('left')
end
if redis.call('EXISTS', KEYS[10]) == 1 then return answer('unfinished') end
redis.call('UNLINK', KEYS[7], KEYS[8], KEYS[9])
if what == 'end' then
  redis.call('DEL', KEYS[5])
  return answer('ended')
end
fresh()
keep()
return answer('cleared')
