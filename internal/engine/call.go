package engine

import (
	"klbr/internal/klbr"
)

// textArgs is the digest of the arguments of a call that takes a text.
func textArgs(text string) string { return klbr.Digest([]byte(text)) }

// known answers a call whose key is known in its turn, and says whether that
// was so. again is true for a model call that must be made once more: it was
// open when an earlier life ended.
func (st *step) known(c Caller, kind klbr.CallKind) (done, again bool) {
	id := CallID{c.Turn, c.Key}
	for i := range st.live.queue {
		q := &st.live.queue[i]
		if q.id != id {
			continue
		}
		if kind != klbr.CallCell || q.cell.Args != c.Args {
			st.fail(c.Reply, keyReused(c.Key))
		} else {
			q.reply = append(q.reply, c.Reply)
		}
		return true, false
	}
	row := st.Calls[id]
	switch {
	case row == nil:
		return false, false
	case row.Kind != kind || row.Args != c.Args:
		st.fail(c.Reply, keyReused(c.Key))
	case row.Settled != 0:
		if c.Reply != 0 {
			st.act(ReplyRecorded{To: c.Reply, Opened: row.Opened, Seq: row.Settled})
		}
	case kind == klbr.CallModel:
		if _, inFlight := st.live.inFlight[id]; !inFlight {
			return false, true
		}
		st.live.inFlight[id] = c.Attempt.Attempt
		st.wait(id, c.Reply)
	default:
		st.wait(id, c.Reply)
	}
	return true, false
}

func (st *step) wait(id CallID, to ReplyTo) {
	if to != 0 {
		st.live.waiters[id] = append(st.live.waiters[id], to)
	}
}

func keyReused(key string) *klbr.Error {
	return klbr.Errorf(klbr.CodeKeyReused, "key %q was used before in this turn with other arguments", key)
}

// caller checks that the attempt runs and that the key is usable.
func (st *step) caller(c Caller) *klbr.TurnRow {
	t := st.attempt(c.Attempt)
	switch {
	case t == nil:
		st.fail(c.Reply, fenced(c.Attempt))
	case c.Key == "" || len(c.Key) > 200:
		st.fail(c.Reply, klbr.Errorf(klbr.CodeInvalid, "a call's key has 1 to 200 characters"))
		return nil
	}
	return t
}

func (st *step) modelCall(ev ModelCall) {
	t := st.caller(ev.Caller)
	if t == nil {
		return
	}
	done, again := st.known(ev.Caller, klbr.CallModel)
	if done {
		return
	}
	id := CallID{ev.Turn, ev.Key}
	l := st.Lanes[t.Lane]
	base, kept, upto := l.LedgerHead, l.LedgerCount, ev.Upto
	if again {
		row := st.Calls[id]
		base, kept, upto = row.Base, row.BaseCount, row.Upto
	} else if err := st.ledgerFree(t); err != nil {
		st.fail(ev.Reply, err)
		return
	}
	if ev.Reset != "" {
		base, kept = "", 0
	}
	head, err := klbr.ChainLedger(base, ev.Append...)
	switch {
	case err != nil:
		st.fail(ev.Reply, klbr.Errorf(klbr.CodeInvalid, "append: %v", err))
		return
	case len(ev.Append) == 0:
		st.fail(ev.Reply, klbr.Errorf(klbr.CodeInvalid, "append is empty"))
		return
	case ev.Reset == "" && ev.Base != base, ev.Reset != "" && ev.Base != "":
		e := klbr.Errorf(klbr.CodeLedgerStale, "base is not the ledger's head").
			WithHint("read ledger.head and append to it, or reset with a reason")
		e.Current = base
		st.fail(ev.Reply, e)
		return
	}
	var joined []int64
	if !again {
		if joined, err = st.joinable(t, ev.Join); err != nil {
			st.fail(ev.Reply, klbr.AsError(err))
			return
		}
	} else {
		joined = ev.Join
	}
	seq := st.emit(t.Lane, t.Turn, &klbr.ModelCalled{
		Key: ev.Key, Args: ev.Args, Attempt: ev.Attempt.Attempt, Route: ev.Route,
		Base: base, Head: head, Kept: kept, Count: kept + len(ev.Append), Upto: upto,
		Append: ev.Append, Reset: ev.Reset, Joined: joined, Tools: ev.Tools, Params: ev.Params,
	})
	st.live.inFlight[id] = t.Attempt
	st.wait(id, ev.Reply)
	st.act(CallModel{
		Turn: t.Turn, Lane: t.Lane, Key: ev.Key, Called: seq, Head: head,
		Route: ev.Route, Tools: ev.Tools, Params: ev.Params,
	})
}

// ledgerFree refuses a second call beside one in flight: a ledger has one end.
// A call that an earlier attempt left, and that this one does not repeat, is
// settled as superseded.
func (st *step) ledgerFree(t *klbr.TurnRow) *klbr.Error {
	for _, id := range sortedCalls(st.Calls) {
		c := st.Calls[id]
		if c.Kind != klbr.CallModel || c.Settled != 0 || c.Lane != t.Lane {
			continue
		}
		attempt, inFlight := st.live.inFlight[id]
		if inFlight && attempt == t.Attempt {
			return klbr.Errorf(klbr.CodeInvalid, "model call %q is in flight in this lane", id.Key).
				WithHint("await it first")
		}
		if inFlight {
			delete(st.live.inFlight, id)
			st.act(CancelModel{Called: c.Opened})
		}
		st.emit(t.Lane, id.Turn, &klbr.ModelFailed{Key: id.Key, Called: c.Opened,
			Error: *klbr.Errorf(klbr.CodeSuperseded, "another attempt at the turn went another way")})
		st.failWaiters(id, klbr.Errorf(klbr.CodeSuperseded, "another call took its place"))
	}
	return nil
}

// joinable checks that each seq is a message that waits in the turn's lane and
// may join it.
func (st *step) joinable(t *klbr.TurnRow, seqs []int64) ([]int64, error) {
	for _, seq := range seqs {
		ok := false
		for _, a := range st.Waiting[t.Lane] {
			ok = ok || a.Seq == seq && a.Mode == klbr.LaneSteer && a.Author == t.Author
		}
		if !ok {
			return nil, klbr.Errorf(klbr.CodeInvalid, "message %d cannot join turn %d", seq, t.Turn).
				WithHint("join only what context.read lists as pending")
		}
	}
	return seqs, nil
}

func (st *step) modelDone(ev ModelDone) {
	id := CallID{ev.Turn, ev.Key}
	c := st.Calls[id]
	if c == nil || c.Settled != 0 || c.Opened != ev.Called {
		if ev.Err == nil {
			st.emit(ev.Lane, ev.Turn, &klbr.ModelAnswered{
				Key: ev.Key, Called: ev.Called, Route: ev.Route, Answer: ev.Answer, ModelOutcome: ev.Outcome, Late: true,
			})
		}
		return
	}
	delete(st.live.inFlight, id)
	var seq int64
	l := st.Lanes[c.Lane]
	err := ev.Err
	head, cerr := klbr.ChainLedger(l.LedgerHead, ev.Answer)
	if err == nil && cerr != nil {
		err = klbr.Errorf(klbr.CodeModelFailed, "the answer cannot be kept: %v", cerr)
	}
	if err != nil {
		seq = st.emit(c.Lane, ev.Turn, &klbr.ModelFailed{Key: ev.Key, Called: ev.Called, Error: *err})
	} else {
		seq = st.emit(c.Lane, ev.Turn, &klbr.ModelAnswered{
			Key: ev.Key, Called: ev.Called, Route: ev.Route, Answer: ev.Answer, Head: head, Count: l.LedgerCount + 1, ModelOutcome: ev.Outcome,
		})
	}
	st.answerWaiters(id, ev.Called, seq)
}

func (st *step) say(ev Say) {
	t := st.caller(ev.Caller)
	if t == nil {
		return
	}
	ev.Args = textArgs(ev.Text)
	if done, _ := st.known(ev.Caller, klbr.CallSay); done {
		return
	}
	seq := st.emit(t.Lane, t.Turn, &klbr.MessageSaid{Key: ev.Key, Text: ev.Text, ReplyTo: t.ReplyTo})
	st.act(ReplyRecorded{To: ev.Reply, Opened: seq, Seq: seq})
}

func (st *step) note(ev Note) {
	t := st.caller(ev.Caller)
	if t == nil {
		return
	}
	ev.Args = textArgs(ev.Text)
	if done, _ := st.known(ev.Caller, klbr.CallNote); done {
		return
	}
	seq := st.emit(t.Lane, t.Turn, &klbr.NoteLogged{Key: ev.Key, By: "policy", Text: ev.Text})
	st.act(ReplyRecorded{To: ev.Reply, Opened: seq, Seq: seq})
}

func (st *step) effectRequest(ev EffectRequest) {
	t := st.caller(ev.Caller)
	if t == nil {
		return
	}
	if done, _ := st.known(ev.Caller, klbr.CallEffect); done {
		return
	}
	n := st.Session.Effects + 1
	st.emit(t.Lane, t.Turn, &klbr.EffectIntended{Key: ev.Key, Args: ev.Args, Effect: n, Type: ev.Type, Body: ev.Body})
	st.wait(CallID{ev.Turn, ev.Key}, ev.Reply)
	st.act(TryEffect{Effect: n, Type: ev.Type, Body: ev.Body})
}

func (st *step) effectDone(ev EffectDone) {
	e := st.Effects[ev.Effect]
	if e == nil {
		if ev.Effect > 0 && ev.Effect <= st.Session.Effects {
			st.emit("", 0, &klbr.EffectSettled{
				Effect: ev.Effect, Outcome: ev.Outcome, RemoteID: ev.RemoteID, Reason: ev.Reason, Late: true,
			})
		}
		return
	}
	id, lane := CallID{e.Turn, e.Key}, ""
	if c := st.Calls[id]; c != nil {
		lane = c.Lane
	}
	seq := st.emit(lane, e.Turn, &klbr.EffectSettled{
		Key: e.Key, Effect: ev.Effect, Outcome: ev.Outcome, RemoteID: ev.RemoteID, Reason: ev.Reason,
	})
	st.answerWaiters(id, e.Intended, seq)
}
