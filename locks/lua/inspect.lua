-- inspect: tell who holds the lock. Writes nothing.
--
-- KEYS[1]  lock hash: holder id -> hold count
--
-- Returns  {type of the key, time to live in ms, {holder id, hold count, ..}}
local lock = KEYS[1]
local kind = redis.call('TYPE', lock)['ok']
local holders = {}
if kind == 'hash' then
    holders = redis.call('HGETALL', lock)
end
return {kind, redis.call('PTTL', lock), holders}
