-- force_release: take the lock away from whoever holds it and wake a waiter.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- KEYS[2]  stem of all hold keys of a read-write lock: a hold key is <stem>:<holder id>:rwlock_timeout:<n>
-- ARGV[1]  wake channel of a lock with one holder
-- ARGV[2]  wake channel of a read-write lock
-- ARGV[3]  1: only a lock that has no time to live, so that it would never end
--
-- Returns  {type of the key found, subscribers that heard the wake-up, -1 if it may not be published}
local lock, stem, channel, read_write_channel = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local kind = redis.call('TYPE', lock)['ok']
if kind ~= 'hash' then
    return {kind, 0}
end
if ARGV[3] == '1' and redis.call('PTTL', lock) ~= -1 then
    return {'none', 0}
end
local mode = redis.call('HGET', lock, 'mode')
if mode then
    local fields = redis.call('HGETALL', lock)
    for i = 1, #fields, 2 do
        -- The readers' hold keys are known from the hash alone, so they are built here; they share the lock's slot.
        for n = 1, tonumber(fields[i + 1]) or 0 do
            redis.call('DEL', stem .. ':' .. fields[i] .. ':rwlock_timeout:' .. n)
        end
    end
end
redis.call('DEL', lock)
local heard
if mode then
    -- Behind readers only writers wait: one a process is enough, and Redisson keeps `0`, but not `1`, for one about to sleep.
    heard = redis.pcall('PUBLISH', read_write_channel, mode == 'read' and '0' or '1')
else
    heard = redis.pcall('PUBLISH', channel, '0')
end
return {kind, tonumber(heard) or -1}
