-- fair_wake: wake the first waiter of a fair lock if the lock is free.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- KEYS[2]  queue: list of the waiters' holder ids
-- KEYS[3]  scores: holder id -> time at which the waiter counts as dead, in ms since 1970
-- ARGV[1]  what a waiter's wake channel begins with
--
-- Returns  subscribers that heard the wake-up, -1 if it may not be published
local lock, queue, scores, stem = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
if redis.call('EXISTS', lock) == 1 then
    return 0
end
local now = now_ms()
expire_waiters(queue, scores, now, '')
local _, heard = wake_head(queue, scores, now, stem, '')
return heard
