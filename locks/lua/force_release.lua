-- force_release: take the lock away from whoever holds it and wake a waiter.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- ARGV[1]  wake channel
--
-- Returns  {type of the key found, subscribers that heard the wake-up, -1 if it may not be published}
local lock, channel = KEYS[1], ARGV[1]
local kind = redis.call('TYPE', lock)['ok']
if kind ~= 'hash' then
    return {kind, 0}
end
redis.call('DEL', lock)
local heard = redis.pcall('PUBLISH', channel, '0')
return {kind, tonumber(heard) or -1}
