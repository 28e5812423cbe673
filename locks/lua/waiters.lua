-- waiters: tell who waits for a fair lock, first come first. Writes nothing.
--
-- KEYS[1]  queue: list of the waiters' holder ids
-- KEYS[2]  scores: holder id -> time at which the waiter counts as dead, in ms since 1970
--
-- Returns  {holder id, ms until it counts as dead or -1 if nothing says when, ..}
local queue, scores = KEYS[1], KEYS[2]
local now = now_ms()
local waiters = {}
for _, id in ipairs(redis.call('LRANGE', queue, 0, -1)) do
    local score = score_of(scores, id)
    waiters[#waiters + 1] = id
    waiters[#waiters + 1] = score and math.max(0, score - now) or -1
end
return waiters
