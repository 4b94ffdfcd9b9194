package redistoken

import "github.com/redis/go-redis/v9"

// The scripts share the keys of one account, which lie in one slot:
//
//	KEYS[1] token:{<hash of account>}:current  hash: token, called_at, renew_at,
//	        expires_at (Unix ms), rejected; gone when the token has expired
//	KEYS[2] token:{<hash of account>}:lock     string: owner of the grant at work
//	KEYS[3] token:{<hash of account>}:grants   sorted set: the ledger, owner -> Unix ms
//	KEYS[4] token:{<hash of account>}:pause    string: a grant has failed
//
// Each is safe to repeat with the same arguments.

// begin tells what token there is and, if one is due (or wanted anew) and nobody is at it,
// makes the caller the one who asks for it. The ledger's check and its entry are one
// step, made before the call; an owner makes one call.
//
// ARGV[1] owner, fresh for each call      ARGV[2] the lock's lease, ms
// ARGV[3] window of the ledger, ms        ARGV[4] grants allowed in it
// ARGV[5] 1 to ask although the token is fresh
// Clock: Redis's own, read inside.
// Returns {verdict, token or "", ms the token is good for, 1 if it was
// rejected, number}; the number is when the call was entered (Unix ms) with
// "yours", ms to wait with "paused" and "limit", and 0 with "fresh" and "busy".
var begin = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local cur = redis.call('HMGET', KEYS[1], 'token', 'expires_at', 'renew_at', 'rejected')
local token, left = cur[1] or '', (tonumber(cur[2] or '0')) - now
if left <= 0 then token, left = '', 0 end
local rejected = 0
if token ~= '' and cur[4] then rejected = 1 end

if ARGV[5] ~= '1' and token ~= '' and rejected == 0 and now < tonumber(cur[3] or '0') then
  return {'fresh', token, left, 0, 0}
end
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then
  return {'busy', token, left, rejected, 0}
end
if not holder then
  local pause = redis.call('PTTL', KEYS[4])
  if pause > 0 then
    return {'paused', token, left, rejected, pause}
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now - tonumber(ARGV[3])))
  redis.call('ZREM', KEYS[3], ARGV[1]) -- of a begin whose answer was lost: no call was made
  if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[4]) then
    local oldest = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    return {'limit', token, left, rejected, tonumber(oldest[2]) + tonumber(ARGV[3]) - now}
  end
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
redis.call('ZADD', KEYS[3], string.format('%.0f', now), ARGV[1])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
return {'yours', token, left, rejected, now}
`)

// extend renews the lock's lease while the grant is at work, and enters the call
// again: a failover may have lost the entry. A lock that was lost stays lost, since
// another may have asked meanwhile.
//
// ARGV[1] owner   ARGV[2] when the call was entered   ARGV[3] lease, ms
// ARGV[4] longest life of the lock, ms   ARGV[5] window, ms
// Clock: Redis's own, read inside.
// Returns 1 renewed, 0 the lock is lost or at its end.
var extend = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[3], ARGV[5])
local life = math.min(tonumber(ARGV[3]), tonumber(ARGV[2]) + tonumber(ARGV[4]) - now)
if life <= 0 or redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[2], string.format('%.0f', life))
return 1
`)

// store puts a granted token in place and ends the attempt. Who has lost the lock
// replaces no newer token, unless the gateway has refused that: a later grant may have
// ended an earlier one's token, and here the earlier grant may be the later call. It enters the call again: a failover may have lost the
// entry.
//
// ARGV[1] owner   ARGV[2] when the call was entered   ARGV[3] token
// ARGV[4] its life, ms   ARGV[5] renew after, ms   ARGV[6] window, ms
// Clock: Redis's own, read inside and through ARGV[2], which begin returned.
// Returns {1 if it was stored, the token that is there now, ms it is good for}.
var store = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local called = tonumber(ARGV[2])
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[3], ARGV[6])
redis.call('DEL', KEYS[4])
local mine = redis.call('GET', KEYS[2]) == ARGV[1]
if mine then redis.call('DEL', KEYS[2]) end
local cur = redis.call('HMGET', KEYS[1], 'called_at', 'token', 'expires_at', 'rejected')
if not mine and not cur[4] and tonumber(cur[1] or '0') > called then
  return {0, cur[2] or '', tonumber(cur[3] or '0') - now}
end
local expires = string.format('%.0f', called + tonumber(ARGV[4]))
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'token', ARGV[3], 'called_at', ARGV[2], 'expires_at', expires,
  'renew_at', string.format('%.0f', called + tonumber(ARGV[5])))
redis.call('PEXPIREAT', KEYS[1], expires)
return {1, ARGV[3], tonumber(expires) - now}
`)

// may tells somebody who needs no token now whether to come to begin: not when one of
// the hour's grants is used. A good token that is due is then renewed by those who use
// it, and a bad one replaced by those who need one.
//
// ARGV[1] window of the ledger, ms
// Clock: Redis's own, read inside.
// Returns 1 or 0. It writes nothing.
var may = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local since = string.format('(%.0f', now - tonumber(ARGV[1]))
return redis.call('ZCOUNT', KEYS[3], since, '+inf') == 0 and 1 or 0
`)

// fail ends an attempt that brought no token; for a while nobody tries.
//
// ARGV[1] owner   ARGV[2] when the call was entered, or "" if the gateway was
// not asked and the call does not count   ARGV[3] pause, ms, 0 for none
// ARGV[4] window, ms
// Clock: Redis's own, by time to live.
// Returns 1.
var fail = redis.NewScript(`
if ARGV[2] == '' then
  redis.call('ZREM', KEYS[3], ARGV[1])
else
  redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[3], ARGV[4])
end
if tonumber(ARGV[3]) > 0 then redis.call('SET', KEYS[4], '1', 'PX', ARGV[3]) end
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
return 1
`)

// reject marks the current token as refused by the gateway, so that begin lets
// someone ask for another.
//
// ARGV[1] the token
// Clock: none.
// Returns 1 marked, 0 another one is current already.
var reject = redis.NewScript(`
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'rejected', '1')
return 1
`)

// restore takes up what an earlier Redis knew: the ledger's entries are added to
// those that are there, and the token is taken if it is newer than the one there
// and still good.
//
// ARGV[1] window, ms   ARGV[2] token or ""   ARGV[3] called_at   ARGV[4] renew_at
// ARGV[5] expires_at   ARGV[6...] owner and time of each ledger entry
// Clock: Redis's own, read inside; an entry from the future counts as now.
// Returns 1 token taken, 0 not.
var restore = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for i = 6, #ARGV, 2 do
  local at = math.min(tonumber(ARGV[i + 1]), now)
  if at > now - tonumber(ARGV[1]) then
    redis.call('ZADD', KEYS[3], 'NX', string.format('%.0f', at), ARGV[i])
    redis.call('PEXPIRE', KEYS[3], ARGV[1])
  end
end
if ARGV[2] == '' or tonumber(ARGV[5]) <= now then return 0 end
if tonumber(redis.call('HGET', KEYS[1], 'called_at') or '0') >= tonumber(ARGV[3]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'token', ARGV[2], 'called_at', ARGV[3], 'renew_at', ARGV[4], 'expires_at', ARGV[5])
redis.call('PEXPIREAT', KEYS[1], ARGV[5])
return 1
`)
