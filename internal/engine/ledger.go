package engine

import (
	"fmt"

	"klbr/internal/klbr"
)

// Ledger is a lane's conversation as the model was last sent it: a fold of the
// lane's model records, from the one that began it (LaneRow.LedgerFrom).
type Ledger struct {
	Head     string
	Messages []klbr.Message
}

// Apply advances the ledger by one of its lane's records; others change
// nothing. A call that was made again after a crash replaces itself.
func (l *Ledger) Apply(r klbr.Record) error {
	body, err := r.Decode()
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	switch b := body.(type) {
	case *klbr.ModelCalled:
		switch {
		case b.Reset != "":
			l.Messages = nil
		case b.Kept > len(l.Messages):
			return fmt.Errorf("ledger: record %d keeps %d messages of %d", r.Seq, b.Kept, len(l.Messages))
		default:
			l.Messages = l.Messages[:b.Kept:b.Kept]
		}
		l.Messages = append(l.Messages, b.Append...)
		l.Head = b.Head
	case *klbr.ModelAnswered:
		if !b.Late {
			l.Messages = append(l.Messages, b.Answer)
			l.Head = b.Head
		}
	}
	return nil
}
