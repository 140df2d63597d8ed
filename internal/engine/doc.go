// Package engine is klbr's pure core: a session's state as a fold of its log,
// and Step, which turns an event into the records to commit and the actions to
// perform once they are committed.
//
// There is no I/O here, no clock, no randomness and no goroutine: time, ids
// and the results of look-ups come in with the event. What it guarantees, for
// every order of events:
//
//   - a lane has at most one running turn, taken in admission order;
//   - an admission key is admitted once;
//   - every call that was opened is settled exactly once;
//   - at most one cell runs in a kernel generation, and none is run again;
//   - an answer for something that is over is recorded as late or dropped, and
//     never acted on;
//   - the state after a step equals the fold of the records up to it.
package engine
