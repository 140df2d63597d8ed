package klbr

import (
	"errors"
	"fmt"
)

// Code is the machine-readable kind of an Error. It is what the protocol
// carries as data.kind and what the command line maps to an exit code.
type Code string

const (
	CodeInvalid        Code = "invalid"          // the request is malformed
	CodeNotFound       Code = "not_found"        // no such session, lane, turn, …
	CodeExists         Code = "exists"           // it is there already, and differs
	CodeIDReused       Code = "id_reused"        // same (source, id), another body
	CodeKeyReused      Code = "key_reused"       // same call key, other arguments
	CodeFenced         Code = "fenced"           // the turn, attempt or generation is over
	CodeLedgerStale    Code = "ledger_stale"     // base is not the ledger's head
	CodeEpochMismatch  Code = "epoch_mismatch"   // compare-and-swap lost
	CodeStorageFailed  Code = "storage_failed"   // the commit failed; nothing happened
	CodeSessionStopped Code = "session_stopped"  // the session is held until resumed
	CodeDraining       Code = "draining"         // admission is closed
	CodeNoModel        Code = "no_model"         // no model route is reachable
	CodeModelRefused   Code = "model_refused"    // the server said no: configuration or request
	CodeModelFailed    Code = "model_failed"     // the call failed after its retries
	CodeModelRejected  Code = "model_rejected"   // the model's own output was unusable to its server
	CodeOverflow       Code = "context_overflow" // the prompt is larger than the window
	CodeStopped        Code = "stopped"          // a person stopped it
	CodeSuperseded     Code = "superseded"       // its turn ended without it
	CodePolicyFailed   Code = "policy_failed"    // behaviour raised, exited or fell silent
	CodePoisonous      Code = "poisonous"        // three interruptions in a row with nothing settled
	CodeWorkerFailed   Code = "worker_failed"    // a Python process could not be started
	CodeBudget         Code = "budget"           // a turn's budget is used up
	CodeCursor         Code = "cursor"           // a cursor of another incarnation or from the future
	CodeForbidden      Code = "forbidden"        // this peer may not speak
	CodeNewerStore     Code = "newer_store"      // the store's schema is newer than this program
	CodeNotAStore      Code = "not_a_store"      // the file is not a klbr store
	CodeLocked         Code = "locked"           // another daemon has the state directory
	CodeTooLarge       Code = "too_large"        // over a bound; the message names it
	CodeUnsupported    Code = "unsupported"      // a method, version or host_api that is not served
	CodeInternal       Code = "internal"         // a defect of klbr's
)

// Error is the one error of the domain. Message is a sentence for a person;
// Hint, where there is one, says what to do next. Neither ever holds a secret.
type Error struct {
	Code    Code   `json:"kind"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	// Seq is set on id_reused and cursor errors: the record concerned, or the
	// newest one.
	Seq int64 `json:"seq,omitempty"`
	// Current is set where a compare-and-swap lost: what holds now (an epoch
	// in decimal, a ledger head in hex).
	Current string `json:"current,omitempty"`
}

// Errorf makes an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// WithHint returns a copy of e that says what to do next.
func (e *Error) WithHint(hint string) *Error {
	c := *e
	c.Hint = hint
	return &c
}

func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + ": " + e.Hint
}

// Is matches errors by code, so that errors.Is(err, &Error{Code: c}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// AsError finds the domain error in err's chain. An error without one is
// wrapped as internal, so that every error that leaves klbr has a code.
// It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}
