-- fair_acquire: take the lock if no other waiter comes first, or raise the hold to the count told; if it is busy and the caller may
-- queue, stand in the queue, or keep the place in it. Harmless when run twice.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- KEYS[2]  queue: list of the waiters' holder ids
-- KEYS[3]  scores: holder id -> time at which the waiter counts as dead, in ms since 1970
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  lease_ms
-- ARGV[4]  1 if the caller may queue: it listens on its channel
-- ARGV[5]  what a waiter's wake channel begins with
--
-- Returns  {1, hold count} granted; {0, retry after ms, place in the queue from 1, 0 for none} busy; {-1, 0} a re-entry whose hold is
--          gone
local lock, queue, scores = KEYS[1], KEYS[2], KEYS[3]
local holder, count, lease_ms, may_queue, stem = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local _, wait = own_kind(holder)

local now = now_ms()
expire_waiters(queue, scores, now, holder)
local free = count == '1' and redis.call('EXISTS', lock) == 0
local head = redis.call('LINDEX', queue, 0)
if free and head then
    head = wake_head(queue, scores, now, stem, holder)
end
local reply
if not free or not head or head == holder then
    local score = free and score_of(scores, holder)
    if free and (head or score) then
        -- Those behind move up by the taker's wait, and wait for the lease that begins now.
        redis.call('LREM', queue, 0, holder)
        redis.call('ZREM', scores, holder)
        local late = score and math.max(0, now + tonumber(lease_ms) + wait - score) or 0
        shift_all(scores, late - wait)
    end
    reply = take(lock, holder, count, lease_ms)
    if reply[1] ~= 0 or reply[2] < 0 then
        return reply
    end
end

local free_in = reply and reply[2] or 0
-- When to ask again: when the lock is free, or once a second if that makes no difference.
local retry_after = reply and free_in or 1000
local position = 0
if may_queue == '1' then
    local place, score = redis.call('LPOS', queue, holder), score_of(scores, holder)
    if not place or not score then
        local last = redis.call('LINDEX', queue, -1)
        score = (last and last ~= holder and score_of(scores, last) or now + free_in) + wait
        redis.call('ZADD', scores, string.format('%.0f', score), holder)
        place = place or redis.call('RPUSH', queue, holder) - 1
    else
        -- Living, and those behind keep their distance.
        local late = lag(score, wait, now + free_in)
        shift_from(queue, scores, place, late)
        score = score + late
    end
    -- Well before the own place ends; and a head that dies is noticed in time, though not by all at once.
    retry_after = math.min(retry_after, score - now - math.floor(wait / 2), 1000 * (place + 1))
    position = place + 1
    head = redis.call('LINDEX', queue, 0)
    if not score_of(scores, head) then
        -- A head without a score would block everybody for ever.
        redis.call('ZADD', scores, string.format('%.0f', now + free_in + wait), head)
    end
end
if head and head ~= holder then
    retry_after = math.min(retry_after, (score_of(scores, head) or now + 1000) - now)
end
return {0, math.max(1, retry_after), position}
