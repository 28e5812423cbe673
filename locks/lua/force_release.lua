-- force_release: take the lock away from whoever holds it and wake a waiter.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- ARGV[1]  wake channel of a lock with one holder
-- ARGV[2]  wake channel of a read-write lock
--
-- Returns  {type of the key found, subscribers that heard the wake-up, -1 if it may not be published}
local lock, channel, read_write_channel = KEYS[1], ARGV[1], ARGV[2]
local kind = redis.call('TYPE', lock)['ok']
if kind ~= 'hash' then
    return {kind, 0}
end
local is_read_write = redis.call('HEXISTS', lock, 'mode') == 1
redis.call('DEL', lock)
local heard
if is_read_write then
    heard = redis.pcall('PUBLISH', read_write_channel, '1')
else
    heard = redis.pcall('PUBLISH', channel, '0')
end
return {kind, tonumber(heard) or -1}
