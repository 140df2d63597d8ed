package engine

import (
	"encoding/json"

	"klbr/internal/klbr"
)

// Action is something to do once the step's records are committed. The
// concrete types are in this file.
type Action interface{ action() }

type (
	// Reply answers a caller with a value of this package or an error.
	Reply struct {
		To    ReplyTo
		Value any
		Err   *klbr.Error
	}

	// ReplyRecorded answers a caller of an acting call with the outcome that
	// the log holds at Seq; the call was opened at Opened.
	ReplyRecorded struct {
		To     ReplyTo
		Opened int64
		Seq    int64
	}

	// StartTurn runs turn() in a worker of the turn's release.
	StartTurn struct{ Turn klbr.TurnRow }

	// CancelTurn cancels that attempt.
	CancelTurn struct{ Attempt }

	// CallModel makes the request that model.called at Called stands for: the
	// lane's ledger, whose head is then Head.
	CallModel struct {
		Turn   int64
		Lane   string
		Key    string
		Called int64
		Head   string
		Route  string
		Tools  []klbr.Tool
		Params klbr.ModelParams
	}

	// CancelModel ends a request.
	CancelModel struct{ Called int64 }

	// RunCell runs a cell in a generation, whose process is started first where
	// it does not run yet.
	RunCell struct {
		Cell       int64
		Started    int64 // seq of cell.started
		Turn       int64
		Lane       string
		Generation int64
		Code       string
		TimeoutMS  int64
	}

	// InterruptCell interrupts it; a generation that does not heed is killed.
	InterruptCell struct {
		Cell       int64
		Generation int64
		Reason     string
	}

	// EndKernel kills a generation's process.
	EndKernel struct{ Generation int64 }

	// TryEffect makes an effect happen.
	TryEffect struct {
		Effect int64
		Type   string
		Body   json.RawMessage
	}

	// AskEffect finds out what became of an effect that an earlier life may
	// have tried. Its body is in effect.intended at Intended.
	AskEffect struct {
		Effect   int64
		Type     string
		Intended int64
	}
)

// The values of Reply.
type (
	// Admitted answers Admit.
	Admitted struct {
		Seq       int64
		Duplicate bool
		Held      bool
	}
	// CellAccepted answers PersonCell.
	CellAccepted struct{ Cell, Seq int64 }
	// Done answers the operator's events.
	Done struct{}
	// TurnEnded answers TurnStop; Turn is 0 where a person's cell was ended.
	TurnEnded struct{ Turn int64 }
	// HeapReset answers KernelReset.
	HeapReset struct {
		Generation int64
		Text       string
	}
	// LaneOpened answers LaneOpen.
	LaneOpened struct {
		Lane   klbr.LaneRow
		Opened bool
	}
	// Activated answers Activate.
	Activated struct{ Epoch int64 }
)

func (Reply) action()         {}
func (ReplyRecorded) action() {}
func (StartTurn) action()     {}
func (CancelTurn) action()    {}
func (CallModel) action()     {}
func (CancelModel) action()   {}
func (RunCell) action()       {}
func (InterruptCell) action() {}
func (EndKernel) action()     {}
func (TryEffect) action()     {}
func (AskEffect) action()     {}
