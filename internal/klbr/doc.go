// Package klbr is klbr's domain: the records of a session's log, the rows that
// are derived from them, the messages that a model sees, and the errors that a
// person sees.
//
// It imports nothing of ours and does no I/O. What it guarantees:
//
//   - every record kind has one versioned Go type, found through New;
//   - an unknown kind or a newer version is kept as raw bytes and passed on;
//   - Digest and Ledger chaining depend on bytes alone, never on map order.
package klbr
