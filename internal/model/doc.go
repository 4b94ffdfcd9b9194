// Package model holds the sale to its rules under random interleavings. It has
// tests only.
//
// One sequence is a list of steps that pgregory.net/rapid draws. Requests,
// payers' returns and sweeps are the real checkout, settle and reconcile, on the
// real scripts behind two real gates. Each runs until its next call of ledger,
// store, queue, gateway or mailer, and waits there for its turn; between two
// turns any other may run, the clock may move, the process may be lost for good,
// the replicas may go away, the primary may fail over, Redis may come back empty
// and be rebuilt, the operator may open, close or change the sale. A call may be
// lost, or made and its reply lost; Redis may refuse to write. Money may move without
// our execute, for a seat that is there or gone or of an earlier sale, otherwise than
// ordered, or twice; somebody may hear of it at once, later, again, or not before the
// end. After every single call the rules of the contract are checked on what a reader
// sees: no transaction is a paid seat and goes back, and what was decided of it,
// acknowledged, stands, across a failover, and in the store across a rebuild. At the
// end everything lapses, every seat must be paid or free, and every transaction a paid
// seat or a refund.
//
// Two kinds of servers: an in-process one, where losing the replicas, and a
// failover that takes back what they had not acknowledged, are simulated; and a
// real primary with two replicas. What the model sees is tested too: it must catch
// every one of the copies of the scripts in testdata/mutants, each broken in one
// place, and an acknowledgement that is none.
//
// Run it longer with -model.checks, or with HOLDFAST_MODEL=full in the
// environment; 2,000 sequences and more must have met every move of a row. Repeat a
// sequence with the -rapid.seed or -rapid.failfile that a failure prints, one on
// real servers with its -model.seed. A seed fixes the steps; ids are random and
// time is the wall clock with an offset, so two calls within one millisecond may
// come out in another order.
//
// Not covered: how notifications are kept and worked on (a report of money is settle
// alone), and how a refund is sent; the cross-check of store against ledger (a HELD
// record whose attempt owns no row is not complained of, and no row is in doubt
// across a rebuild while its process still works); the gate's group commit (the
// script decides crowds here, but one call of the gate carries one request); holds
// that are extended; the breaker's rest before releases; the end of a TTL, except
// that a stash may be gone; the queue's own drivers (a list stands in for it, delivering
// late or twice); the status page; a record that the store has lost. Not covered
// in-process: what WAIT says of a connection that has written nothing since, so a
// script that forgets to write is not seen.
//
// Fail mode: a broken rule ends the sequence with its trace. Clock: the wall
// clock and an offset.
package model
