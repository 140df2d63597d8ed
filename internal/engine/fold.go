package engine

import (
	"fmt"
	"slices"

	"klbr/internal/klbr"
)

// Fold advances the state by one committed record, whose body must be loaded.
// It errs on a record that does not follow: a gap in seq, or a body that says
// what cannot be. An unknown kind changes nothing but the session's seq.
func (s *State) Fold(r klbr.Record) error {
	body, err := r.Decode()
	if err != nil {
		return fmt.Errorf("fold: %w", err)
	}
	return s.fold(r, body)
}

func (s *State) fold(r klbr.Record, body klbr.Body) error {
	row := &s.Session
	if r.Session != row.Session || r.Seq != row.Seq+1 {
		return fmt.Errorf("fold: record %s/%d does not follow %s/%d", r.Session, r.Seq, row.Session, row.Seq)
	}
	row.Seq, row.ChangedAt = r.Seq, r.Time
	s.dirty.session = true
	switch b := body.(type) {
	case *klbr.SessionOpened:
		row.State, row.Workspace, row.Release, row.OpenedAt = klbr.SessionOpen, b.Workspace, b.Release, r.Time
		row.Epoch = 1
	case *klbr.SessionDraining:
		row.State = klbr.SessionClosing
	case *klbr.SessionDrained:
		row.State = klbr.SessionClosed
	case *klbr.SessionStopped:
		row.State = klbr.SessionHeld
	case *klbr.SessionResumed:
		row.State = klbr.SessionOpen
	case *klbr.LaneOpened:
		s.lane(b.Name).Mode = b.Mode
	case *klbr.BehaviorActivated:
		row.Previous, row.Release, row.Epoch, row.Probation = b.Previous, b.Release, b.Epoch, b.Probation
	case *klbr.BehaviorRolledBack:
		row.Previous, row.Release, row.Epoch, row.Probation = "", b.Release, b.Epoch, false
	case *klbr.MessageAdmitted:
		s.foldAdmitted(r, b)
	case *klbr.TurnStarted:
		s.foldTurnStarted(r, b)
	case *klbr.TurnInterrupted:
		if t := s.turn(r.Turn); t != nil {
			t.State, t.Strikes = klbr.TurnParked, b.Strikes
			s.dirty.turns[t.Turn] = *t
		}
	case *klbr.TurnFinished:
		s.foldTurnEnded(r, klbr.TurnDone)
	case *klbr.TurnFailed:
		s.foldTurnEnded(r, klbr.TurnDidFail)
	case *klbr.TurnStopped:
		s.foldTurnEnded(r, klbr.TurnWasStopped)
	case *klbr.ModelCalled:
		s.foldModelCalled(r, b)
	case *klbr.ModelAnswered:
		s.foldModelAnswered(r, b)
	case *klbr.ModelFailed:
		s.settle(CallID{r.Turn, b.Key}, r.Seq)
	case *klbr.MessageSaid:
		s.foldInstant(r, b.Key, klbr.CallSay, textArgs(b.Text))
		s.progress(r.Turn)
	case *klbr.NoteLogged:
		if b.Key != "" {
			s.foldInstant(r, b.Key, klbr.CallNote, textArgs(b.Text))
		}
	case *klbr.CellStarted:
		s.foldCellStarted(r, b)
	case *klbr.CellFinished:
		s.foldCellFinished(r, b)
	case *klbr.KernelStarted:
		if b.Generation == row.Kernel {
			row.KernelLife = b.Life
		}
	case *klbr.KernelReset:
		row.Kernel, row.KernelLife = b.Loss.Generation, ""
		clear(s.Names)
		clear(s.dirty.names)
		s.dirty.namesReset = true
	case *klbr.EffectIntended:
		s.foldEffectIntended(r, b)
	case *klbr.EffectSettled:
		s.foldEffectSettled(r, b)
	}
	return nil
}

func (s *State) lane(name string) *klbr.LaneRow {
	l, ok := s.Lanes[name]
	if !ok {
		l = &klbr.LaneRow{Session: s.Session.Session, Lane: name, Mode: klbr.LaneSteer}
		s.Lanes[name] = l
	}
	s.dirty.lanes[name] = true
	return l
}

func (s *State) turn(n int64) *klbr.TurnRow { return s.Turns[n] }

func (s *State) foldAdmitted(r klbr.Record, b *klbr.MessageAdmitted) {
	a := &klbr.AdmissionRow{
		Session: s.Session.Session, Source: b.Source, SourceID: b.SourceID,
		Digest: klbr.AdmissionDigest(r.Lane, *b), Seq: r.Seq, Lane: r.Lane,
		Author: b.Author, Mode: b.Mode, Waiting: true,
	}
	s.Waiting[r.Lane] = append(s.Waiting[r.Lane], a)
	s.dirty.admission(*a)
}

// take gives a waiting message to a turn.
func (s *State) take(lane string, seq, turn int64) *klbr.AdmissionRow {
	q := s.Waiting[lane]
	i := slices.IndexFunc(q, func(a *klbr.AdmissionRow) bool { return a.Seq == seq })
	if i < 0 {
		return nil
	}
	a := q[i]
	if len(q) == 1 {
		delete(s.Waiting, lane)
	} else {
		s.Waiting[lane] = slices.Delete(slices.Clone(q), i, i+1)
	}
	a.Waiting, a.Turn = false, turn
	s.dirty.admission(*a)
	return a
}

func (s *State) foldTurnStarted(r klbr.Record, b *klbr.TurnStarted) {
	t, ok := s.Turns[r.Turn]
	if !ok {
		l := s.lane(r.Lane)
		t = &klbr.TurnRow{
			Session: s.Session.Session, Turn: r.Turn, Lane: r.Lane,
			Message: b.Message, ReplyTo: b.Message,
			After: l.LedgerSeq, BaseHead: l.LedgerHead, BaseCount: l.LedgerCount,
			From: r.Seq, Started: r.Time,
		}
		if a := s.take(r.Lane, b.Message, r.Turn); a != nil {
			t.Author = a.Author
		}
		s.Turns[r.Turn] = t
		l.Running = r.Turn
		s.Session.Turns = max(s.Session.Turns, r.Turn)
	}
	t.State, t.Attempt, t.Release, t.Epoch = klbr.TurnRunning, b.Attempt, b.Release, b.Epoch
	s.dirty.turns[t.Turn] = *t
}

func (s *State) foldTurnEnded(r klbr.Record, as klbr.TurnState) {
	t := s.turn(r.Turn)
	if t == nil {
		return
	}
	t.State, t.Upto, t.Ended = as, r.Seq, r.Time
	s.dirty.turns[t.Turn] = *t
	delete(s.Turns, t.Turn)
	s.lane(t.Lane).Running = 0
	for id, c := range s.Calls {
		if id.Turn != t.Turn {
			continue
		}
		// A cell that is still being interrupted, or an effect under way, is
		// settled in its own time.
		if c.Settled == 0 && (c.Kind == klbr.CallCell || c.Kind == klbr.CallEffect) {
			continue
		}
		s.dropCall(id)
	}
	if as == klbr.TurnDone && t.Epoch == s.Session.Epoch {
		s.Session.Probation = false
	}
}

func (s *State) dropCall(id CallID) {
	delete(s.Calls, id)
	delete(s.dirty.calls, id)
	s.dirty.callsGone[id] = true
}

func (s *State) putCall(c *klbr.CallRow) {
	c.Session = s.Session.Session
	id := CallID{c.Turn, c.Key}
	s.Calls[id] = c
	s.dirty.calls[id] = true
	delete(s.dirty.callsGone, id)
}

// settle closes an open call; it goes at once when its turn is over.
func (s *State) settle(id CallID, seq int64) *klbr.CallRow {
	c := s.Calls[id]
	if c == nil || c.Settled != 0 {
		return nil
	}
	c.Settled = seq
	s.dirty.calls[id] = true
	if s.Turns[id.Turn] == nil {
		s.dropCall(id)
	}
	return c
}

// progress notes that a step of the turn is settled: what crashes it now is
// counted anew.
func (s *State) progress(turn int64) {
	if t := s.Turns[turn]; t != nil && t.Strikes != 0 {
		t.Strikes = 0
		s.dirty.turns[t.Turn] = *t
	}
}

// foldInstant keeps a call that is settled by the record that opens it.
func (s *State) foldInstant(r klbr.Record, key string, kind klbr.CallKind, args string) {
	s.putCall(&klbr.CallRow{Turn: r.Turn, Key: key, Kind: kind, Args: args, Opened: r.Seq, Settled: r.Seq, Lane: r.Lane})
}

func (s *State) foldModelCalled(r klbr.Record, b *klbr.ModelCalled) {
	l := s.lane(r.Lane)
	s.putCall(&klbr.CallRow{
		Turn: r.Turn, Key: b.Key, Kind: klbr.CallModel, Args: b.Args, Opened: r.Seq, Lane: r.Lane,
		Base: b.Base, BaseCount: b.Kept, Upto: b.Upto,
	})
	if b.Reset != "" {
		l.LedgerFrom = r.Seq
	}
	l.LedgerHead, l.LedgerCount, l.LedgerSeq = b.Head, b.Count, b.Upto
	t := s.Turns[r.Turn]
	for _, seq := range b.Joined {
		if s.take(r.Lane, seq, r.Turn) != nil && t != nil {
			t.ReplyTo = max(t.ReplyTo, seq)
			s.dirty.turns[t.Turn] = *t
		}
	}
}

func (s *State) foldModelAnswered(r klbr.Record, b *klbr.ModelAnswered) {
	if u := b.Usage; u != nil {
		s.dirty.usage = append(s.dirty.usage, klbr.UsageRow{
			Session: s.Session.Session, Seq: r.Seq, Turn: r.Turn, Route: b.Route, Model: b.Model, Usage: *u, Time: r.Time,
		})
	}
	if b.Late {
		return
	}
	if s.settle(CallID{r.Turn, b.Key}, r.Seq) == nil {
		return
	}
	l := s.lane(r.Lane)
	l.LedgerHead, l.LedgerCount = b.Head, b.Count
	if t := s.Turns[r.Turn]; t != nil {
		t.Totals.ModelCalls++
		if u := b.Usage; u != nil {
			if u.PromptTokens != nil {
				t.Totals.PromptTokens += *u.PromptTokens
			}
			if u.CompletionTokens != nil {
				t.Totals.CompletionTokens += *u.CompletionTokens
			}
		}
		t.Strikes = 0
		s.dirty.turns[t.Turn] = *t
	}
}

func (s *State) foldCellStarted(r klbr.Record, b *klbr.CellStarted) {
	id := cellCall(r.Turn, b.Key, b.Cell)
	s.putCall(&klbr.CallRow{
		Turn: id.Turn, Key: id.Key, Kind: klbr.CallCell, Args: b.Args, Opened: r.Seq,
		Number: b.Cell, Lane: r.Lane, Generation: b.Generation,
	})
	s.Session.Cells = max(s.Session.Cells, b.Cell)
	if b.SourceID != "" {
		s.dirty.admission(klbr.AdmissionRow{
			Session: s.Session.Session, Source: PersonCells, SourceID: b.SourceID,
			Digest: personCellDigest(r.Lane, b.Code), Seq: r.Seq, Lane: r.Lane, Author: "owner",
		})
	}
}

func (s *State) foldCellFinished(r klbr.Record, b *klbr.CellFinished) {
	if b.Late || s.settle(cellCall(r.Turn, b.Key, b.Cell), r.Seq) == nil {
		return
	}
	if b.Generation == s.Session.Kernel && b.Lost == nil {
		for _, n := range b.Bound {
			s.Names[n] = b.Cell
			s.dirty.names[n] = true
		}
		for _, n := range b.Freed {
			delete(s.Names, n)
			s.dirty.names[n] = true
		}
	}
	if t := s.Turns[r.Turn]; t != nil {
		t.Totals.Cells++
		s.dirty.turns[t.Turn] = *t
	}
	if b.Status != klbr.CellLost {
		s.progress(r.Turn)
	}
}

func (s *State) foldEffectIntended(r klbr.Record, b *klbr.EffectIntended) {
	s.putCall(&klbr.CallRow{Turn: r.Turn, Key: b.Key, Kind: klbr.CallEffect, Args: b.Args, Opened: r.Seq, Number: b.Effect, Lane: r.Lane})
	e := &klbr.EffectRow{Session: s.Session.Session, Effect: b.Effect, Turn: r.Turn, Key: b.Key, Type: b.Type, Intended: r.Seq}
	s.Effects[b.Effect] = e
	s.dirty.effects[b.Effect] = *e
	s.Session.Effects = max(s.Session.Effects, b.Effect)
}

func (s *State) foldEffectSettled(r klbr.Record, b *klbr.EffectSettled) {
	e := s.Effects[b.Effect]
	if b.Late || e == nil {
		return
	}
	e.Outcome, e.Settled, e.RemoteID, e.Reason = b.Outcome, r.Seq, b.RemoteID, b.Reason
	s.dirty.effects[b.Effect] = *e
	delete(s.Effects, b.Effect)
	s.settle(CallID{e.Turn, e.Key}, r.Seq)
	s.progress(e.Turn)
}
