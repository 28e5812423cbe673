-- fair_release: lower the hold to the count told; at 0 delete the lock, leave the queue, and wake the next waiter. Harmless when run
-- twice.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- KEYS[2]  queue: list of the waiters' holder ids
-- KEYS[3]  scores: holder id -> time at which the waiter counts as dead, in ms since 1970
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  what a waiter's wake channel begins with
--
-- Returns  {holds left, subscribers that heard the wake-up, -1 if it may not be published}; {-1, 0} if it holds nothing
local lock, queue, scores = KEYS[1], KEYS[2], KEYS[3]
local holder, count, stem = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local held = tonumber(redis.call('HGET', lock, holder))
if held and count > 0 then
    if held > count then
        redis.call('HSET', lock, holder, ARGV[2])
        held = count
    end
    return {held, 0}
end
-- A delete goes first: it is allowed when memory is full, and once something was written the rest is too.
if held then
    redis.call('DEL', lock)
else
    gone(lock, holder)
end
local left = not held and count == 0 and leave(queue, scores, holder)
if not held and not (left and redis.call('EXISTS', lock) == 0) then
    return {-1, 0}
end
-- Also when a waiter leaves while the lock is free: the wake-up may have been its own.
local now = now_ms()
expire_waiters(queue, scores, now, holder)
local _, heard = wake_head(queue, scores, now, stem, holder)
return held and {0, heard} or {-1, 0}
