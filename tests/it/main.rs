//! Everything that needs a real redis-server, in one binary.

mod acl; // what a user may not do is told, harms nobody and leaves nothing behind
mod admin; // what operators do: lists, and a sweep that touches no lock that lives
mod advise; // which lock for a workload, as a program
mod cancel; // a future dropped at any await leaves nothing behind
mod capacity; // the search for what a workload bears, as a program
mod contract; // what every lock must do, run for each kind
mod events; // what a client tells about its leases, and how a slow reader hears it
mod every_kind; // what befell renewals and tables elsewhere, with every kind
mod fair; // the queue of the fair lock: order, dead waiters, mixed with Redisson's
mod fault_moments; // whom a fault strikes and when
mod faults; // each fault takes effect, tells when, and heals
mod fence_gate; // an older fencing token is refused where it matters
mod hand_off; // a held lock goes on in another process, and in one only
mod harness; // the load tool from the outside: its exit codes, its processes, its report
mod harness_faults; // each fault under load, and what may not or cannot be
mod harness_kinds; // the load tool over every kind of lock
mod lost_replies; // what may have run, and may still run later, harms nobody
mod many_locks; // thousands of held locks on one watchdog: none is lost, and what they cost
mod multi; // several locks as one, all or none
mod names; // all keys of a lock share a slot, whatever its name
mod outage; // Redis dies, falls silent, comes back
mod owner; // who is who: owners are explicit, a stale one harms nobody
mod passing; // a release gives the lock straight to the next waiter of its process
mod policies; // the experiment over all policies, as a program
mod proxy; // what a leg of the proxy does in each of its modes
mod quorum; // a majority of independent masters decides
mod races; // two steps that cross, and what stays behind when somebody leaves
mod read_write; // many readers or one writer, each hold with a life of its own
mod redisson; // a real Redisson and our library take turns on the same keys
mod reentrant; // what the reentrant lock writes, reads and publishes
mod renewal_faults; // every fault that a renewal can meet, and what holders are told when
mod servers; // servers of our own end with their owner
mod times; // lease times: what is given is what Redis keeps, nonsense is refused
mod vectors; // what the jar wrote step by step, and that ours writes the same
mod wakeup; // waiters hear a release that comes at any moment
mod watchdog; // renewal never outlives ownership and tells the holder in time
mod worker_faults; // workers of the load tool that stand still, die or drop what they wait for: what is found, and that nothing stays behind
mod writers_first; // readers that let a writer come first, and how it fares without
