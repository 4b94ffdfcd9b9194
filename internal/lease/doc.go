// Package lease elects one process of the fleet by a lock in Redis, so that the
// reconciler's sweeps run once and not three times.
//
// Nothing may depend on it for being correct. Redis can lose the lock in a
// failover, a process can be paused between a check and its effect, and clocks
// drift: for a while two processes may both believe in their term. Every effect
// of an elected process must be conditional by itself; the lease only saves
// work.
//
// # Terms
//
// An election is a key that holds the owner's random token and expires after
// the lease's length. What the owner gets is a term, not a flag: it trusts
// itself from the moment the attempt began, and stops before the key does.
//
//	attempt begins      Redis sets the key             trust ends      key expires
//	     |--------------------|------------ ... ------------|--------------|
//	     '------------- length minus margin ----------------'
//	                          '---------------- length --------------------'
//
// So a slow answer shortens the term and cannot stretch it past the key. The
// margin, a fifth of the length, is for clocks that run apart and for work that
// takes a moment to hear that its context has ended.
//
// # States
//
//	                refused, or no answer: again in a third of the length
//	               .--.
//	               |  v
//	start ----> standing ------- acquired -------> elected --. renewed, with the
//	               ^                               |  |  ^---' same token
//	               |     the key is another's,     |  |
//	               |     or trust has run out      |  |
//	               '-------------------------------'  |
//	                                                  | the caller ends
//	                                                  v
//	                                               released
//
// Renew and Release compare the token in Redis: a process that lost its term can
// neither prolong nor end another's.
//
// Fail mode: closed. Without Redis nobody is elected, and an elected process
// steps down when its trust runs out. Clock: the caller's for trust, which must
// carry a monotonic reading as time.Now does; Redis's for the key.
package lease
